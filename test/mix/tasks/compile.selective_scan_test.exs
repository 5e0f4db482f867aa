task = Path.expand("../../../mix/compile_selective_scan.exs", __DIR__)

# A bundle for another machine has none.
if File.exists?(task) do
  defmodule Mix.Tasks.Compile.SelectiveScanTest do
    # Of projects that have the compiler, and of the library's modules one that wants Nx.
    use ExUnit.Case, async: true

    @moduletag :tmp_dir
    @task task
    @module ExPhil.Native.Defn.Call

    test "what a package makes possible is compiled when the package comes, and then no more", %{tmp_dir: dir} do
      project(dir)
      refute @module in compiled(dir, "")
      package = "-pa #{package(dir)}"
      assert @module in compiled(dir, package)
      [again, without] = for options <- [package, ""], do: elem(compile(dir, options), 0)
      refute again =~ "Compiling"
      # What mix compiles by itself where a package has gone is its own affair.
      refute without =~ "error"
      assert @module in compiled(dir, package)
    end

    test "in an umbrella", %{tmp_dir: dir} do
      File.write!(Path.join(dir, "mix.exs"), """
      defmodule Umbrella.MixProject do
        use Mix.Project
        def project, do: [apps_path: "apps", version: "0.1.0", prune_code_paths: false]
      end
      """)

      app = Path.join(dir, "apps/other")
      project(app, ~s(build_path: "../../_build", deps_path: "../../deps",))
      refute @module in compiled(dir, "")
      assert @module in compiled(dir, "-pa #{package(dir)}")
    end

    defp project(dir, settings \\ "") do
      File.mkdir_p!(Path.join(dir, "lib"))

      # The package is on the code path, and no dependency.
      File.write!(Path.join(dir, "mix.exs"), """
      Code.require_file(#{inspect(@task)})

      defmodule Other.MixProject do
        use Mix.Project

        def project do
          [app: :other, version: "0.1.0", #{settings} compilers: [:selective_scan | Mix.compilers()], prune_code_paths: false]
        end
      end
      """)

      File.write!(Path.join(dir, "lib/with.ex"), """
      if Code.ensure_loaded?(Nx) do
        defmodule #{inspect(@module)} do
          def nx, do: Nx.version()
        end
      end
      """)
    end

    # What there is of the project after it has been compiled.
    defp compiled(dir, options) do
      {words, 0} = compile(dir, options)
      refute words =~ "warning"

      for path <- Path.wildcard(Path.join(dir, "_build/dev/lib/other/ebin/*.beam")),
          do: path |> Path.basename(".beam") |> String.to_atom()
    end

    defp compile(dir, options) do
      env = [{"ELIXIR_ERL_OPTIONS", options}, {"MIX_ENV", "dev"}, {"MIX_BUILD_PATH", nil}, {"MIX_EXS", nil}]
      System.cmd("mix", ["compile"], cd: dir, env: env, stderr_to_stdout: true)
    end

    # An Nx of one function.
    defp package(dir) do
      forms = [
        {:attribute, 1, :module, Nx},
        {:attribute, 1, :export, [version: 0]},
        {:function, 1, :version, 0, [{:clause, 1, [], [], [{:integer, 1, 1}]}]}
      ]

      {:ok, Nx, binary} = :compile.forms(forms)
      folder = Path.join(dir, "nx")
      File.mkdir_p!(folder)
      File.write!(Path.join(folder, "Elixir.Nx.beam"), binary)
      folder
    end
  end
end
