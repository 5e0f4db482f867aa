Code.require_file("support/scans.exs", __DIR__)

alias ExPhil.Native.SelectiveScan

here? = &if(&1, do: "here", else: "not here, its tests are left out")
IO.puts("CUDA device: #{here?.(SelectiveScan.cuda_available?())}; Nx: #{here?.(Code.ensure_loaded?(Nx))}")

excluded = [
  cuda: not SelectiveScan.cuda_available?(),
  no_cuda: SelectiveScan.cuda_available?(),
  proc: not File.exists?("/proc/self/status")
]

# What the surroundings ask for is not what the tests are about.
System.delete_env("EXPHIL_SCAN_BACKEND")
ExUnit.start(exclude: for({tag, true} <- excluded, do: tag))
