task = Path.expand("../../../mix/compile_selective_scan.exs", __DIR__)

# A bundle for another machine has none.
if File.exists?(task) do
  defmodule Mix.Tasks.Compile.SelectiveScanTest do
    # Of projects that have the compiler, and of the library's modules one that wants Nx; and of a native library that a
    # cargo builds which only writes down what it is asked for.
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

    describe "cargo" do
      setup %{tmp_dir: dir} do
        # The path of the workspace is no pattern.
        {:ok, root: native(Path.join(dir, "of [a-z] {1,2}"))}
      end

      test "runs where a library is lacking, older than a source or of another system, and by force", %{root: root} do
        build = "build --release --locked --package selective_scan_nif --target-dir #{root}/native/target"
        clean = String.replace(build, "build", "clean", global: false)
        kernel = Path.join(root, "native/selective_scan/kernels/scan.cu")
        library = Path.join(root, "priv/native/selective_scan_nif.so")
        # In the second in which the library was built.
        edited = fn -> File.touch!(kernel, File.stat!(library, time: :posix).mtime) end

        for {wanted, args, changed} <- [
              {[build], [], fn -> :ok end},
              {[], [], fn -> :ok end},
              {[build], [], edited},
              {[build], ["--force"], fn -> :ok end},
              {[clean, build], [], fn -> write(root, "priv/native/system", "pdp11 unix V7") end}
            ] do
          changed.()
          assert {words, 0} = compile_native(root, args)
          assert {asked(root), words} == {wanted, words}
          assert File.read!(library) == "a library\n"
          assert File.read!(Path.join(root, "priv/native/system")) =~ "GNU_LIBC_VERSION of here"
        end
      end

      test "is missed where there is no library, and else not", %{root: root} do
        File.rm!(Path.join(root, "bin/cargo"))
        assert {words, 1} = compile_native(root)
        assert words =~ "cargo, which builds it, is not on the path"

        write(root, "priv/native/selective_scan_nif.so", "of before")
        assert {words, 0} = compile_native(root)
        assert words =~ "cargo is not on the path: the native library stays as it was built before"
        assert File.read!(Path.join(root, "priv/native/selective_scan_nif.so")) == "of before"
      end

      test "that fails, or builds no library, ends it", %{root: root} do
        for {line, words} <- [
              {"echo no; exit 7", ~r/^no$.*\(exit status 7\)/ms},
              {"exit 0", ~r/cargo built no .*nif\.so or /}
            ] do
          program(root, "cargo", line)
          assert {said, 1} = compile_native(root)
          assert said =~ words
          refute File.exists?(Path.join(root, "priv/native/selective_scan_nif.so"))
        end
      end
    end

    # A project with a copy of the compiler, the sources that this asks for, and programs of its own.
    defp native(root) do
      write(root, "mix/compile_selective_scan.exs", File.read!(@task))

      write(root, "mix.exs", """
      Code.require_file("mix/compile_selective_scan.exs", __DIR__)
      # Mix itself was found on another.
      System.put_env("PATH", Path.join(__DIR__, "bin"))

      defmodule Other.MixProject do
        use Mix.Project
        def project, do: [app: :other, version: "0.1.0", compilers: [:selective_scan]]
      end
      """)

      for source <- ~w(Cargo.toml Cargo.lock selective_scan/Cargo.toml selective_scan/src/lib.rs
                       selective_scan/kernels/scan.cu selective_scan_nif/build.rs selective_scan_nif/src/lib.rs) do
        write(root, Path.join("native", source), "")
        # Older than any library.
        File.touch!(Path.join([root, "native", source]), 0)
      end

      library = "native/target/release/libselective_scan_nif.so"
      File.mkdir_p!(Path.join(root, Path.dirname(library)))
      program(root, "cargo", ~s(echo "$@" >> ../asked; [ "$1" = clean ] || echo a library > ../#{library}))
      program(root, "getconf", ~s(echo "$1" of here))
      root
    end

    defp write(root, name, contents) do
      path = Path.join(root, name)
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, contents)
    end

    defp program(root, name, line) do
      write(root, Path.join("bin", name), "#!/bin/sh\n" <> line <> "\n")
      File.chmod!(Path.join([root, "bin", name]), 0o755)
    end

    # What cargo has been asked for since.
    defp asked(root) do
      path = Path.join(root, "asked")
      said = if File.exists?(path), do: File.read!(path), else: ""
      File.rm(path)
      String.split(said, "\n", trim: true)
    end

    defp compile_native(root, args \\ []) do
      System.cmd("mix", ["compile" | args], cd: root, env: environment(""), stderr_to_stdout: true)
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
      System.cmd("mix", ["compile"], cd: dir, env: environment(options), stderr_to_stdout: true)
    end

    defp environment(options) do
      [{"ELIXIR_ERL_OPTIONS", options}, {"MIX_ENV", "dev"}, {"MIX_BUILD_PATH", nil}, {"MIX_EXS", nil}]
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
