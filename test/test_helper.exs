Code.require_file("support/scans.exs", __DIR__)

alias ExPhil.Native.SelectiveScan

here? = &if(&1, do: "here", else: "not here, its tests are left out")
packages = for module <- [Nx, Axon, EXLA], do: "#{inspect(module)}: #{here?.(Code.ensure_loaded?(module))}"
IO.puts(Enum.join(["CUDA device: #{here?.(SelectiveScan.cuda_available?())}" | packages], "\n"))

excluded = [
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
