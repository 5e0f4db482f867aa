# Whole calls from Elixir, from binaries of the BEAM to binaries of the BEAM, on the first CUDA device:
#
#     elixir -pa _build/bench/lib/exphil_native/ebin bench/calls.exs FILE.json
#
# of the shapes in bench/shapes.json that are played, 60 frames long. `bin/bench-gpu` builds the library, and puts the
# medians beside the others.

Code.require_file("shapes.exs", __DIR__)

alias ExPhil.Native.SelectiveScan.Timing
alias ExPhil.Native.{SelectiveScan, Tensor}

[file] = System.argv()

if not SelectiveScan.available?(), do: raise("the native library could not be loaded")

if not SelectiveScan.cuda_available?() do
  IO.puts("SKIPPED: calls: there is no CUDA device")
  System.halt(0)
end

# As native/selective_scan/tests/gpu/machine.rs finds it for the kernels: the two are compared.
driver =
  with {:ok, text} <- File.read("/proc/driver/nvidia/version"),
       [number] <- Regex.run(~r/(?<!\S)\d\S*\.\S*/, text) do
    number
  else
    _ -> "unknown"
  end

# Bytes that are numbers between -1 and 1, whatever they are; a negative for the rates of decay.
numbers = fn shape, scale ->
  data = for _ <- 1..Tuple.product(shape), into: <<>>, do: <<scale * :rand.uniform()::float-32-native>>
  Tensor.from_binary(data, :f32, shape)
end

figures =
  for {name, {batch, 60, dim, state}} <- Bench.Shapes.read() do
    [x, dt] = for scale <- [1.0, 0.1], do: numbers.({batch, 60, dim}, scale)
    [b, c] = for _ <- 1..2, do: numbers.({batch, 60, state}, 1.0)
    a = numbers.({dim, state}, -1.0)
    times = Timing.measure(fn -> SelectiveScan.scan(x, dt, a, b, c, backend: :cuda) end, 1000, 50)
    [p50, least, mean, p99, sd] = for what <- [:p50, :min, :mean, :p99, :sd], do: Float.round(times[what], 1)
    IO.puts("#{p50} µs  #{name}: p50; least #{least}, mean #{mean}, p99 #{p99}, standard deviation #{sd}")

    ~s({"who": "ours", "shape": "#{name}", "variant": "f32", "pass": "binary to binary", "how": "call", ) <>
      ~s("microseconds": #{p50}, "p99": #{p99}})
  end

header =
  Enum.map_join(
    [
      version: "Elixir #{System.version()} on OTP #{System.otp_release()}",
      date: Date.utc_today(),
      gpu: hd(SelectiveScan.devices()).name,
      driver: driver
    ],
    ", ",
    fn {key, value} -> ~s("#{key}": "#{value}") end
  )

File.write!(file, ~s({"header": {#{header}}, "figures": [\n  #{Enum.join(figures, ",\n  ")}\n]}\n))
