task = Path.expand("../../../mix/compile_selective_scan.exs", __DIR__)

# A bundle for another machine has none.
if File.exists?(task) do
  defmodule Mix.Tasks.Compile.SelectiveScanTest do
    use ExUnit.Case, async: true

    @moduletag :tmp_dir
    @task task

    test "files whose package came, or went, are compiled again", %{tmp_dir: dir} do
      File.mkdir_p!(Path.join(dir, "lib"))

      File.write!(Path.join(dir, "mix.exs"), """
      Code.require_file(#{inspect(@task)})

      defmodule Other.MixProject do
        use Mix.Project
        # The package is on the code path, and no dependency.
        def project do
          [app: :other, version: "0.1.0", compilers: [:selective_scan | Mix.compilers()], prune_code_paths: false]
        end
      end
      """)

      File.write!(Path.join(dir, "lib/with.ex"), """
      if Code.ensure_loaded?(Nx) do
        defmodule With do
          def nx, do: Nx.version()
        end
      end
      """)

      for version <- [1, 2] do
        refute With in compiled(dir, "")
        assert With in compiled(dir, "-pa #{package(dir, version)}")
      end

      refute With in compiled(dir, "")
    end

    # What there is of the project after it has been compiled.
    defp compiled(dir, options) do
      env = [{"ELIXIR_ERL_OPTIONS", options}, {"MIX_ENV", "dev"}, {"MIX_BUILD_PATH", nil}, {"MIX_EXS", nil}]
      {words, 0} = System.cmd("mix", ["compile"], cd: dir, env: env, stderr_to_stdout: true)
      refute words =~ "warning"

      for path <- Path.wildcard(Path.join(dir, "_build/dev/lib/other/ebin/*.beam")),
          do: path |> Path.basename(".beam") |> String.to_atom()
    end

    # An Nx of one function.
    defp package(dir, version) do
      forms = [
        {:attribute, 1, :module, Nx},
        {:attribute, 1, :export, [version: 0]},
        {:function, 1, :version, 0, [{:clause, 1, [], [], [{:integer, 1, version}]}]}
      ]

      {:ok, Nx, binary} = :compile.forms(forms)
      folder = Path.join(dir, "nx#{version}")
      File.mkdir_p!(folder)
      File.write!(Path.join(folder, "Elixir.Nx.beam"), binary)
      folder
    end
  end
end
