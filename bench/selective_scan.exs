# The scan in every backend that runs here, and in Nx by every algorithm, with Benchee:
#
#     mix run bench/selective_scan.exs [SHAPE ...]
#
# A shape is one of bench/shapes.json; without one it is `tiny`, the only one that Nx's own backend, in Elixir, scans in
# less than minutes. With EXLA, configured as Nx's default backend and compiler, Nx takes part in all of them. mix.exs does not
# declare EXLA and Benchee for the same environment: for both, EXPHIL_DEPS_PATH has to name a folder that has them. Results
# are compared with the CPU's before anything is timed.

if not Code.ensure_loaded?(Benchee), do: raise("this wants Nx and Benchee: mix local.hex, mix deps.get")
Code.require_file("shapes.exs", __DIR__)

alias ExPhil.Native.{SelectiveScan, Tensor}

# batch, seq, dim, state: too little to say anything of a GPU, so it is not measured with the others
shapes = Map.put(Bench.Shapes.read(), "tiny", {1, 60, 16, 4})

names = if System.argv() == [], do: ["tiny"], else: System.argv()

for name <- names, not is_map_key(shapes, name) do
  raise ArgumentError, "expected a shape among #{Enum.map_join(shapes, ", ", &elem(&1, 0))}, got: #{name}"
end

algorithms = [:blelloch, :hillis_steele, :cumsum, :sequential]
in_elixir? = elem(Nx.default_backend(), 0) == Nx.BinaryBackend

inputs =
  for name <- names, into: %{} do
    {batch, seq, dim, state} = Map.fetch!(shapes, name)
    normal = fn key, shape -> Nx.Random.normal(key, shape: shape) |> elem(0) end
    [k1, k2, k3, k4, k5] = for index <- 1..5, do: Nx.Random.key(index)
    dt = Nx.Random.uniform(k2, 0.001, 0.1, shape: {batch, seq, dim}) |> elem(0)
    a = Nx.Random.uniform(k3, -16.0, -1.0, shape: {dim, state}) |> elem(0)

    given = [
      normal.(k1, {batch, seq, dim}),
      dt,
      a,
      normal.(k4, {batch, seq, state}),
      normal.(k5, {batch, seq, state})
    ]

    {name, {Enum.map(given, &Tensor.from_nx/1), given}}
  end

native =
  for backend <- [:cpu] ++ if(SelectiveScan.cuda_available?(), do: [:cuda], else: []),
      do: {"native #{backend}", [backend: backend]}

nx = for algorithm <- algorithms, do: {"nx #{algorithm}", [backend: :nx, algorithm: algorithm]}
names_with_nx = if in_elixir?, do: ["tiny"], else: names

for {name, {ours, of_nx}} <- inputs do
  jobs =
    for({job, opts} <- native, do: {job, ours, opts}) ++
      for {job, opts} <- nx, name in names_with_nx, do: {job, of_nx, opts}

  wanted = apply(SelectiveScan, :scan, of_nx ++ [[backend: :cpu]])

  for {job, given, opts} <- jobs do
    got = apply(SelectiveScan, :scan, given ++ [opts])
    got = if is_struct(got, Tensor), do: Tensor.to_nx(got), else: got
    error = got |> Nx.subtract(wanted) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
    if error > 1.0e-3, do: raise("#{job} is #{error} from the CPU")
  end

  IO.puts("\n#{name}: batch, seq, dim, state = #{inspect(shapes[name])}")

  for {job, given, opts} <- jobs, into: %{} do
    {job, fn -> apply(SelectiveScan, :scan, given ++ [opts]) end}
  end
  |> Benchee.run(warmup: 1, time: 3, title: name, print: [configuration: false, benchmarking: false])
end
