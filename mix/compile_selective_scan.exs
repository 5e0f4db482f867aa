defmodule Mix.Tasks.Compile.SelectiveScan do
  @moduledoc """
  Builds the native library with cargo and puts it into `priv/native/`, and has everything compiled anew where Nx, Axon or EXLA has
  come since. (Mix asks a dependency that it has fetched only when it compiles that anew: `mix deps.compile exphil_native --force`.)

  Cargo runs only where a source is newer than the library, or another system than this one built it: a working tree may be
  copied into a container. Where there is no cargo, a library that is already there is used as it is. `mix.exs` requires
  this file, because the task is needed before anything of the project is compiled.
  """
  use Mix.Task.Compiler

  # In an umbrella it is the project's that has it.
  @recursive true

  @root Path.expand("..", __DIR__)
  @workspace Path.join(@root, "native")
  @library Path.join(@root, "priv/native/selective_scan_nif.so")
  # The system that it was built on.
  @system Path.join(@root, "priv/native/system")
  @sources ~w(
    Cargo.toml Cargo.lock */Cargo.toml
    selective_scan_nif/build.rs
    {selective_scan,selective_scan_nif}/src/**/*
    selective_scan/kernels/**/*
  )

  @impl true
  def run(args) do
    for_new_packages()
    cargo = System.find_executable("cargo")

    cond do
      fresh?() and "--force" not in args ->
        {:noop, []}

      cargo ->
        build(cargo)

      File.exists?(@library) ->
        Mix.shell().info("cargo is not on the path: the native library stays as it was built before")
        {:noop, []}

      true ->
        Mix.raise("""
        exphil_native has a native library, and cargo, which builds it, is not on the path.
        Install Rust 1.91 or newer (https://rustup.rs, or the packages of your system), check that `cargo --version`
        answers, and compile again.
        """)
    end
  end

  # Modules that only a package, or a newer one, makes possible. Mix compiles a file again where one of its modules depends on what
  # has changed: never a file that had none. What a package that has gone leaves is mix's to take away.
  defp for_new_packages do
    runtime_call? = fn -> Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 3) end

    made_possible = [
      {ExPhil.Native.Defn.Call, fn -> Code.ensure_loaded?(Nx) end},
      {ExPhil.Native.Defn.Block, runtime_call?},
      {ExPhil.Native.Mamba, fn -> Code.ensure_loaded?(Axon) end},
      {EXLA.CustomCall.ExPhil.Native.Defn.Block.Forward, fn -> Code.ensure_loaded?(EXLA.CustomCall) end}
    ]

    is_lacking = fn {module, is_possible} ->
      not File.exists?(Path.join(Mix.Project.compile_path(), "#{module}.beam")) and is_possible.()
    end

    if Enum.any?(made_possible, is_lacking) do
      Mix.Tasks.Compile.Elixir.clean()
      # Which still names what was cleaned.
      for manifest <- Mix.Tasks.Compile.Elixir.manifests(), do: File.rm(manifest)
    end
  end

  defp fresh? do
    case {File.stat(@library, time: :posix), File.read(@system)} do
      {{:ok, %{mtime: built}}, {:ok, system}} ->
        system == system() and Enum.all?(sources(), &(File.stat!(&1, time: :posix).mtime < built))

      _ ->
        false
    end
  end

  # A library needs a libc that is no older than where it was linked. Of the system's name the vendor is left out, which
  # only says who built this Erlang.
  defp system do
    [machine | _] = :erlang.system_info(:system_architecture) |> to_string() |> String.split("-")
    {_family, name} = :os.type()

    libc =
      case System.find_executable("getconf") do
        nil -> ""
        getconf -> getconf |> System.cmd(["GNU_LIBC_VERSION"], stderr_to_stdout: true) |> elem(0)
      end

    String.trim("#{machine} #{name} #{libc}")
  end

  defp sources do
    # The path of the workspace is no pattern, whatever characters are in it.
    for pattern <- @sources, path <- :filelib.wildcard(to_charlist(pattern), to_charlist(@workspace)) do
      Path.join(@workspace, path)
    end
  end

  defp build(cargo) do
    # What is edited while cargo runs is newer than the library.
    started = System.os_time(:second)
    target = Path.join(@workspace, "target")
    args = ~w(build --release --locked --package selective_scan_nif --target-dir) ++ [target]

    # Of another target, it would lie in another folder.
    options = [cd: @workspace, env: [{"CARGO_BUILD_TARGET", nil}], into: IO.stream(), stderr_to_stdout: true]

    # What was copied along with the library, cargo would take for its own.
    if File.exists?(@system) and File.read!(@system) != system() do
      System.cmd(
        cargo,
        ~w(clean --release --locked --package selective_scan_nif --target-dir) ++ [target],
        options
      )
    end

    case System.cmd(cargo, args, options) do
      {_, 0} ->
        install(Path.join(target, "release"), started)
        # The build folder links to priv/, which may not have been there when mix made the links.
        Mix.Project.build_structure()
        {:ok, []}

      {_, status} ->
        Mix.raise("cargo could not build the native library (exit status #{status}); its words are above")
    end
  end

  # The library is replaced, not overwritten: a BEAM may be running the old one.
  defp install(folder, started) do
    candidates = for extension <- ~w(so dylib), do: Path.join(folder, "libselective_scan_nif.#{extension}")

    built =
      Enum.find(candidates, &File.exists?/1) ||
        Mix.raise(
          "cargo built no #{Enum.join(candidates, " or ")}; a target in a cargo configuration has it lie elsewhere, " <>
            "and one that links statically, as of musl, has none"
        )

    File.mkdir_p!(Path.dirname(@library))
    # Environments, and editors, build side by side.
    copy = "#{@library}.#{System.pid()}.new"
    File.cp!(built, copy)
    File.touch!(copy, started)
    File.rename!(copy, @library)
    File.write!(@system, system())
  end
end
