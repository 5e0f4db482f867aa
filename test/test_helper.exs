Code.require_file("support/scans.exs", __DIR__)

alias ExPhil.Native.SelectiveScan

here? = &if(&1, do: "here", else: "not here, its tests are left out")
packages = for module <- [Nx, Axon, EXLA], do: "#{inspect(module)}: #{here?.(Code.ensure_loaded?(module))}"
IO.puts(Enum.join(["CUDA device: #{here?.(SelectiveScan.cuda_available?())}" | packages], "\n"))

# For tests with several nodes this one is one of a cluster: the port mapper has to run, and names to be resolved.
distributed? =
  Code.ensure_loaded?(Nx) and System.find_executable("epmd") != nil and
    match?({_, 0}, System.cmd("epmd", ["-daemon"])) and
    match?({:ok, _}, Node.start(:"exphil_native_#{System.pid()}", :shortnames))

IO.puts("Erlang distribution: #{here?.(distributed?)}")

# Tests of calls in place need tensors in the memory of a device, which a C compiler helps to.
if Code.ensure_loaded?(Nx.Pointer), do: Code.require_file("support/device_backend.exs", __DIR__)

device_memory =
  if SelectiveScan.cuda_available?() and Code.ensure_loaded?(Nx.Pointer) do
    ExPhil.Native.DeviceMemory.load()
  else
    {:error, "there is no device, or no Nx with pointers"}
  end

IO.puts("Nx tensors in the memory of a CUDA device: #{here?.(device_memory == :ok)} #{inspect(device_memory)}")

# Nx before 0.11 cannot call a library from a defn.
in_defn? = Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 3)
IO.puts("The native scan in a defn: #{here?.(in_defn?)}")

# Nx 0.9 to 0.12 fail at the gradient of a sum of vectorized tensors, whatever is summed.
vectorized_grad? =
  Code.ensure_loaded?(Nx) and
    try do
      x = apply(Nx, :vectorize, [apply(Nx, :iota, [{2, 3, 4}, [type: :f32]]), :x])
      apply(Nx.Defn, :grad, [x, &apply(Nx, :sum, [&1])]) != nil
    rescue
      ArgumentError -> false
    end

IO.puts("Nx's gradient of vectorized tensors: #{here?.(vectorized_grad?)}")

excluded = [
  vectorized_grad: not vectorized_grad?,
  native_in_defn: not in_defn?,
  no_native_in_defn: in_defn?,
  device_memory: device_memory != :ok,
  distributed: not distributed?,
  cuda: not SelectiveScan.cuda_available?(),
  nx: not Code.ensure_loaded?(Nx),
  no_nx: Code.ensure_loaded?(Nx),
  no_cuda: SelectiveScan.cuda_available?(),
  slow: System.get_env("EXPHIL_SLOW") != "1",
  proc: not File.exists?("/proc/self/status")
]

# What the surroundings ask for is not what the tests are about.
System.delete_env("EXPHIL_SCAN_BACKEND")
ExUnit.start(exclude: for({tag, true} <- excluded, do: tag))
