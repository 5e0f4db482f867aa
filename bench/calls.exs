# Whole calls from Elixir, from binaries of the BEAM to binaries of the BEAM, on the first CUDA device:
#
#     elixir -pa _build/prod/lib/exphil_native/ebin bench/calls.exs FILE.json
#
# of the shapes in bench/shapes.json that are played, 60 frames long. `bin/bench-gpu` puts the medians beside the others.

alias ExPhil.Native.SelectiveScan.Timing
alias ExPhil.Native.{SelectiveScan, Tensor}

[file] = System.argv()

if not SelectiveScan.cuda_available?() do
  IO.puts("SKIPPED: calls from Elixir: there is no CUDA device")
  System.halt(0)
end

# A shape is a line: Elixir has had JSON only since 1.18.
shape = ~r/"name": "(?<name>[^"]+)", "batch": (?<batch>\d+), "seq": 60, "dim": (?<dim>\d+), "state": (?<state>\d+)/
registry = File.read!(Path.expand("shapes.json", __DIR__))

# Bytes that are numbers between -1 and 1, whatever they are; a negative for the rates of decay.
numbers = fn shape, scale ->
  data = for _ <- 1..Tuple.product(shape), into: <<>>, do: <<scale * :rand.uniform()::float-32-native>>
  Tensor.from_binary(data, :f32, shape)
end

figures =
  for line <- String.split(registry, "\n"), %{"name" => name} = found <- [Regex.named_captures(shape, line)] do
    [batch, dim, state] = for axis <- ~w(batch dim state), do: String.to_integer(found[axis])
    [x, dt] = for scale <- [1.0, 0.1], do: numbers.({batch, 60, dim}, scale)
    [b, c] = for _ <- 1..2, do: numbers.({batch, 60, state}, 1.0)
    a = numbers.({dim, state}, -1.0)
    times = Timing.measure(fn -> SelectiveScan.scan(x, dt, a, b, c, backend: :cuda) end, 1000, 50)
    [p50, least, mean, p99, sd] = for what <- [:p50, :min, :mean, :p99, :sd], do: Float.round(times[what], 1)
    IO.puts("#{p50} µs  #{name}: p50; least #{least}, mean #{mean}, p99 #{p99}, standard deviation #{sd}")

    ~s({"who": "ours", "shape": "#{name}", "variant": "f32", "pass": "binary to binary", "how": "call", ) <>
      ~s("microseconds": #{p50}, "p99": #{p99}})
  end

version = "Elixir #{System.version()} on OTP #{System.otp_release()}"
File.write!(file, ~s({"header": {"version": "#{version}"}, "figures": [\n  #{Enum.join(figures, ",\n  ")}\n]}\n))
