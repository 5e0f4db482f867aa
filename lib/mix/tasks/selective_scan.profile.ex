defmodule Mix.Tasks.SelectiveScan.Profile do
  @shortdoc "Times the selective scan on this machine"

  @moduledoc """
  Times the selective scan on this machine, in every backend that runs here.

      mix selective_scan.profile --batch 8 --dim 512 --seqlen 1024 --dstate 16 --n-trials 100 --profile-scan

    * `--batch`, `--dim`, `--seqlen`, `--dstate` - the sizes. Default: 8, 512, 1024, 16.
    * `--n-trials` - calls that are timed, after a tenth of them and at least 3 that are not. Default 100.
    * `--profile-ops` - the functions, by `:zoh`: `scan/6`, `scan_for_backward/6`, `backward/7`, `step/7`.
    * `--profile-scan` - `scan/6` by every method.

  With neither of the two, both; `--no-profile-ops` and `--no-profile-scan` leave one out. Times are of whole calls from
  Elixir, from and to memory of the BEAM, in microseconds: mean, standard deviation, least, median and 99th percentile;
  throughput is frames (batch times seqlen, in a step batch) a second by the mean. Nx takes part where its default backend
  is a compiled one. `--help` prints this.
  """
  use Mix.Task

  alias ExPhil.Native.SelectiveScan.{Backend, Options, Timing}
  alias ExPhil.Native.{Error, SelectiveScan, Tensor}

  @switches [
    batch: :integer,
    dim: :integer,
    seqlen: :integer,
    dstate: :integer,
    n_trials: :integer,
    profile_ops: :boolean,
    profile_scan: :boolean
  ]
  @sizes [batch: 8, dim: 512, seqlen: 1024, dstate: 16, n_trials: 100]

  @requirements ["app.start"]

  @impl true
  def run(args) do
    if Enum.any?(args, &(&1 in ["--help", "-h"])),
      do: Mix.shell().info(Mix.Task.moduledoc(__MODULE__)),
      else: profile(args)
  rescue
    error in Error -> Mix.raise(error.message)
  end

  defp profile(args) do
    {flags, rest, wrong} = OptionParser.parse(args, strict: @switches)

    for {name, value} <- wrong ++ Enum.map(rest, &{&1, nil}) do
      Mix.raise("expected the flags of `mix help selective_scan.profile`, got: #{name} #{value}")
    end

    for {name, value} <- flags, is_integer(value) and value < 1 do
      flag = name |> to_string() |> String.replace("_", "-")
      Mix.raise("expected --#{flag} to be a positive integer, got: #{value}")
    end

    sizes = Map.merge(Map.new(@sizes), Map.new(flags))
    inputs = inputs(sizes)

    Mix.shell().info("batch #{sizes.batch}, seq #{sizes.seqlen}, dim #{sizes.dim}, state #{sizes.dstate}, f32; µs")
    if not Backend.compiled_nx?(), do: Mix.shell().info("nx is left out: there is no compiled backend of Nx")
    if wanted?(flags, :profile_ops), do: table("function", sizes, operations(inputs))
    if wanted?(flags, :profile_scan), do: table("method", sizes, methods(inputs))
  end

  # Where nothing is said of a table, it is wanted unless another is.
  defp wanted?(flags, table), do: Keyword.get(flags, table, !(flags[:profile_ops] || flags[:profile_scan]))

  # `{name, frames, function of the backend}`
  defp operations(%{x: x, dt: dt, a: a, b: b, c: c, now: now, state: state} = inputs) do
    {batch, seq, _dim} = x.shape

    [
      {"scan", batch * seq, &SelectiveScan.scan(x, dt, a, b, c, backend: &1)},
      {"scan_for_backward", batch * seq, &SelectiveScan.scan_for_backward(x, dt, a, b, c, backend: &1)},
      {"backward", batch * seq, &SelectiveScan.backward(inputs.dy, x, dt, a, b, c, backend: &1)},
      {"step", batch, &SelectiveScan.step(state, now.x, now.dt, a, now.b, now.c, backend: &1)}
    ]
  end

  defp methods(%{x: x, dt: dt, a: a, b: b, c: c}) do
    {batch, seq, _dim} = x.shape

    for method <- Options.methods() do
      {"#{method}", batch * seq, &SelectiveScan.scan(x, dt, a, b, c, method: method, backend: &1)}
    end
  end

  defp table(title, sizes, rows) do
    head = [title, "backend", "mean", "sd", "min", "p50", "p99", "frames/s"]
    Mix.shell().info(["\n" | row(head)])

    for {name, frames, call} <- rows, backend <- backends() do
      time = Timing.measure(fn -> call.(backend) end, sizes.n_trials, max(3, div(sizes.n_trials, 10)))
      times = for key <- [:mean, :sd, :min, :p50, :p99], do: :erlang.float_to_binary(time[key], decimals: 1)
      Mix.shell().info(row([name, "#{backend}" | times] ++ [Integer.to_string(round(frames * 1.0e6 / time.mean))]))
    end
  end

  defp row([name | numbers]) do
    [String.pad_trailing(name, 18) | Enum.map(numbers, &String.pad_leading(&1, 12))]
  end

  defp backends do
    native = if SelectiveScan.available?(), do: [:cpu], else: []
    cuda = if SelectiveScan.cuda_available?(), do: [:cuda], else: []
    native ++ cuda ++ if(Backend.compiled_nx?(), do: [:nx], else: [])
  end

  defp inputs(%{batch: batch, seqlen: seq, dim: dim, dstate: state}) do
    :rand.seed(:exsss, {1, 2, 3})

    %{
      x: fill({batch, seq, dim}, -1.0, 1.0),
      dt: fill({batch, seq, dim}, 0.001, 0.1),
      a: fill({dim, state}, -16.0, -1.0),
      b: fill({batch, seq, state}, -1.0, 1.0),
      c: fill({batch, seq, state}, -1.0, 1.0),
      dy: fill({batch, seq, dim}, -1.0, 1.0),
      state: zeros({batch, dim, state}),
      now: %{
        x: fill({batch, dim}, -1.0, 1.0),
        dt: fill({batch, dim}, 0.001, 0.1),
        b: fill({batch, state}, -1.0, 1.0),
        c: fill({batch, state}, -1.0, 1.0)
      }
    }
  end

  # Random numbers over and over: the scan takes as long for all of them.
  defp fill(shape, low, high) do
    # Where there is no room for so many, this says so: the BEAM would end.
    zeros(shape)
    size = Tuple.product(shape)
    some = for _ <- 1..min(size, 65_537), into: <<>>, do: <<low + (high - low) * :rand.uniform()::float-32-native>>
    data = some |> :binary.copy(div(size * 4, byte_size(some)) + 1) |> binary_part(0, size * 4)
    Tensor.from_binary(data, :f32, shape)
  end

  defp zeros(shape) do
    Tensor.zeros(shape)
  rescue
    # Sizes that no memory has addresses for.
    error in ArgumentError -> Mix.raise(error.message)
  end
end
