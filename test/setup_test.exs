setup = Path.expand("../bin/setup", __DIR__)

# A bundle for another machine has none.
if File.exists?(setup) do
  defmodule ExPhil.Native.SetupTest do
    # What bin/setup says of the programs that it finds, which are none here but in name.
    use ExUnit.Case, async: true

    @moduletag :tmp_dir
    @setup setup

    test "wants a cargo that can build the native library", %{tmp_dir: dir} do
      for version <- ["1.91.0", "1.100.0-nightly", "2.0.0"], do: assert({_, 0} = run(dir, "echo cargo #{version}"))

      for cargo <- ["echo cargo 1.90.1", "echo cargo 0.99.0", "exit 1"] do
        assert {words, 1} = run(dir, cargo)
        assert words =~ "Rust 1.91 or newer: the cargo on the path is older"
      end
    end

    defp run(dir, cargo) do
      for {name, line} <- %{"cargo" => cargo, "elixir" => "exit 0", "mix" => "exit 0", "cc" => "exit 0"} do
        program = Path.join(dir, name)
        File.write!(program, "#!/bin/sh\n" <> line <> "\n")
        File.chmod!(program, 0o755)
      end

      path = dir <> ":" <> System.get_env("PATH")
      System.cmd("sh", [@setup], env: [{"PATH", path}], stderr_to_stdout: true)
    end
  end
end
