# The selective scan at 60 frames a second.
#
#     mix run examples/realtime.exs [--seconds 10] [--backend auto] [--batch 32] [--seq 60] [--dim 512] [--state 16]
#
# First the scans of a trained Mamba are computed and compared with what its training framework computed (the exit
# status is 1 where they differ by 1e-5 or more). Then two loops run in real time: a window of `seq` frames that is
# scanned anew every frame, and a stream that takes one step a frame.

alias ExPhil.Native.{SelectiveScan, Tensor}
alias ExPhil.Native.SelectiveScan.Backend

defmodule Realtime.Fixture do
  # Activations that reached the two scans of a small Mamba, trained to read handwritten digits as sequences of 64
  # pixels, for 4 images that it had not seen.
  @activations Path.expand("data/digits_scan.safetensors", __DIR__)
  @tolerance 1.0e-5

  def check! do
    tensors = Tensor.load_safetensors(@activations)
    IO.puts("A trained Mamba, 4 handwritten digits: distance from the stored results, relative to their norm")

    errors =
      for layer <- 0..1, {way, run} <- [whole: &whole/1, "frame by frame": &frame_by_frame/1] do
        scan = for name <- ~w(x dt A B C D z dt_bias), into: %{}, do: {name, tensors["scan.#{layer}.#{name}"]}
        {y, state} = run.(scan)
        y_error = distance(y, tensors["scan.#{layer}.y"].data)
        state_error = distance(state, tensors["scan.#{layer}.last_state"].data)
        line = "  layer ~b  ~-15s y ~.2e   final state ~.2e~n"
        :io.format(line, [layer, to_string(way), y_error, state_error])
        max(y_error, state_error)
      end

    if Enum.max(errors) < @tolerance do
      IO.puts("  all below #{@tolerance}\n")
    else
      IO.puts("  that is more than #{@tolerance}: the scan is wrong here")
      System.halt(1)
    end
  end

  defp whole(scan) do
    opts = [d: scan["D"], z: scan["z"], dt_bias: scan["dt_bias"], dt_softplus: true]
    {y, state} = SelectiveScan.scan_with_state(scan["x"], scan["dt"], scan["A"], scan["B"], scan["C"], opts)
    {y.data, state.data}
  end

  defp frame_by_frame(scan) do
    {batch, seq, dim} = Tensor.shape(scan["x"])
    {^dim, states} = Tensor.shape(scan["A"])

    {frames, state} =
      Enum.map_reduce(0..(seq - 1), Tensor.zeros({batch, dim, states}), fn index, state ->
        [x, dt, b, c, z] = for name <- ~w(x dt B C z), do: frame(scan[name], index)
        opts = [d: scan["D"], z: z, dt_bias: scan["dt_bias"], dt_softplus: true]
        {y, state} = SelectiveScan.step(state, x, dt, scan["A"], b, c, opts)
        {y.data, state}
      end)

    # {seq, batch, dim} to {batch, seq, dim}.
    rows = for row <- 0..(batch - 1), frame <- frames, do: binary_part(frame, row * dim * 4, dim * 4)
    {IO.iodata_to_binary(rows), state.data}
  end

  # {batch, width} of {batch, seq, width}.
  def frame(tensor, index) do
    {batch, seq, width} = Tensor.shape(tensor)
    rows = for row <- 0..(batch - 1), do: binary_part(tensor.data, (row * seq + index) * width * 4, width * 4)
    Tensor.from_binary(IO.iodata_to_binary(rows), :f32, {batch, width})
  end

  defp distance(got, wanted) do
    pairs = Enum.zip(floats(got), floats(wanted))
    error = for {g, w} <- pairs, reduce: 0.0, do: (sum -> sum + (g - w) * (g - w))
    norm = for {_, w} <- pairs, reduce: 0.0, do: (sum -> sum + w * w)
    :math.sqrt(error / norm)
  end

  defp floats(binary), do: for(<<x::float-32-native <- binary>>, do: x)
end

defmodule Realtime.Loop do
  @budget_us 1_000_000 / 60

  def budget_us, do: @budget_us

  # Calls `frame` with a state and the number of the frame, 60 times a second: the times it took in microseconds, and
  # how many frames were not done when the next one was due.
  def run(name, seconds, state, frame) do
    start = now_us()
    frames = max(round(seconds * 60), 1)

    {times, missed, _state} =
      Enum.reduce(0..(frames - 1), {[], 0, state}, fn index, {times, missed, state} ->
        due = start + index * @budget_us
        wait_until(due)
        began = now_us()
        state = frame.(state, index)
        done = now_us()
        if rem(index, 15) == 0 or index == frames - 1, do: progress(name, index + 1, frames)
        {[done - began | times], if(done > due + @budget_us, do: missed + 1, else: missed), state}
      end)

    IO.write("\n")
    {times, missed}
  end

  defp wait_until(due) do
    ahead = due - now_us()
    if ahead > 0, do: Process.sleep(ceil(ahead / 1000))
  end

  defp progress(name, done, frames) do
    bar = String.duplicate("█", div(30 * done, frames)) |> String.pad_trailing(30, "░")
    :io.format("\r  ~ts ~ts ~5.1f s", [name, bar, done / 60])
  end

  defp now_us, do: System.monotonic_time(:nanosecond) / 1000
end

defmodule Realtime.Report do
  def print({times, missed}) do
    sorted = times |> Enum.sort() |> List.to_tuple()

    percentile = fn percent ->
      elem(sorted, min(floor(tuple_size(sorted) * percent / 100), tuple_size(sorted) - 1))
    end

    [p50, p95, p99, max] = Enum.map([50, 95, 99, 100], percentile)
    budget = Realtime.Loop.budget_us()

    IO.puts("  a frame takes  p50 #{time(p50)}  p95 #{time(p95)}  p99 #{time(p99)}  max #{time(max)}")

    :io.format(
      "  of the 16.67 ms  p50 ~.1f%  p99 ~.1f%  missed ~b of ~b frames~n",
      [100 * p50 / budget, 100 * p99 / budget, missed, tuple_size(sorted)]
    )

    histogram(Tuple.to_list(sorted))
    IO.puts("  #{verdict(p99, missed, budget)}\n")
  end

  # Times on a scale of powers of the square root of 2.
  defp histogram(times) do
    bucket = fn time -> floor(2 * :math.log2(max(time, 1.0e-3))) end
    counts = Enum.frequencies_by(times, bucket)
    most = counts |> Map.values() |> Enum.max()
    {lowest, highest} = counts |> Map.keys() |> Enum.min_max()

    for step <- lowest..highest do
      count = Map.get(counts, step, 0)
      edges = "#{time(:math.pow(2, step / 2))} – #{time(:math.pow(2, (step + 1) / 2))}"
      bar = String.duplicate("█", ceil(40 * count / most))
      IO.puts("  #{String.pad_leading(edges, 21)} │#{String.pad_trailing(bar, 40)} #{count}")
    end
  end

  defp verdict(p99, 0, budget) do
    "60 FPS held: 99 of 100 frames leave #{time(budget - p99)} or more for everything else"
  end

  defp verdict(p99, missed, budget) when p99 < budget, do: "60 FPS held but for #{missed} frames"
  defp verdict(_p99, missed, _budget), do: "60 FPS not held: #{missed} frames came too late"

  defp time(us) when us < 1000, do: "#{decimal(us, 1)} µs"
  defp time(us), do: "#{decimal(us / 1000, 2)} ms"

  defp decimal(number, decimals), do: :erlang.float_to_binary(number * 1.0, decimals: decimals)
end

defmodule Realtime.Machine do
  def describe do
    "#{processor()}, #{System.schedulers_online()} cores (#{SelectiveScan.instruction_set()}), " <>
      "Elixir #{System.version()}, OTP #{System.otp_release()}"
  end

  defp processor do
    with {:ok, text} <- File.read("/proc/cpuinfo"),
         [_, name] <- Regex.run(~r/^model name\s*: (.*)$/m, text) do
      name
    else
      _ -> to_string(:erlang.system_info(:system_architecture))
    end
  end
end

types = [seconds: :float, backend: :string, batch: :integer, seq: :integer, dim: :integer, state: :integer]
{flags, words, unknown} = OptionParser.parse(System.argv(), strict: types)

if words != [] or unknown != [] or Backend.parse(flags[:backend] || "auto") == :error or
     Enum.any?(flags, fn {_name, value} -> is_number(value) and value <= 0 end) do
  IO.puts(
    :stderr,
    "flags, with numbers above 0, and auto, cpu, cuda, cuda:1 or nx for a backend: " <>
      Enum.map_join(types, " ", fn {name, type} -> "--#{name} #{type}" end)
  )

  System.halt(2)
end

if flags[:backend], do: System.put_env("EXPHIL_SCAN_BACKEND", flags[:backend])

[seconds, batch, seq, dim, states] =
  for {name, default} <- [seconds: 10.0, batch: 32, seq: 60, dim: 512, state: 16], do: flags[name] || default

IO.puts("Machine: #{Realtime.Machine.describe()}")
for device <- SelectiveScan.devices(), do: IO.puts("CUDA device #{device.ordinal}: #{device.name}")
IO.puts("")
Realtime.Fixture.check!()

uniform = fn shape, low, high ->
  # Where there is no room for so many, this says so: the BEAM would end.
  Tensor.zeros(shape)
  count = Tuple.product(shape)
  data = for _ <- 1..count, into: <<>>, do: <<low + (high - low) * :rand.uniform()::float-32-native>>
  Tensor.from_binary(data, :f32, shape)
end

:rand.seed(:exsss, 60)
x = uniform.({batch, seq, dim}, -1.0, 1.0)
dt = uniform.({batch, seq, dim}, 0.001, 0.1)
a = uniform.({dim, states}, -16.0, -1.0)
[b, c] = for _ <- 1..2, do: uniform.({batch, seq, states}, -1.0, 1.0)

announce = fn what, {backend, why} -> IO.puts("#{what}\n  on #{inspect(backend)}: #{why}") end

announce.(
  "The window: #{batch} × #{seq} frames × #{dim} channels × #{states} states, scanned anew every frame",
  SelectiveScan.backend_for(x, dt, a, b, c)
)

window = fn _state, _index -> SelectiveScan.scan(x, dt, a, b, c) end
window.(nil, 0)
Realtime.Loop.run("window", seconds, nil, window) |> Realtime.Report.print()

frames =
  for index <- 0..(seq - 1) do
    for tensor <- [x, dt, b, c], do: Realtime.Fixture.frame(tensor, index)
  end
  |> List.to_tuple()

step = fn state, index ->
  [x, dt, b, c] = elem(frames, rem(index, seq))
  {_y, state} = SelectiveScan.step(state, x, dt, a, b, c)
  state
end

[first_x, first_dt, first_b, first_c] = elem(frames, 0)
start = Tensor.zeros({batch, dim, states})

announce.(
  "The stream: #{batch} × #{dim} channels × #{states} states, one step a frame",
  SelectiveScan.backend_for(first_x, first_dt, a, first_b, first_c)
)

step.(start, 0)
Realtime.Loop.run("stream", seconds, start, step) |> Realtime.Report.print()
