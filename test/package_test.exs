# A bundle for another machine has none.
if File.exists?("mix.exs") do
  defmodule ExPhil.Native.PackageTest do
    # What a project gets that has this one among its dependencies.
    use ExUnit.Case, async: true

    # As mix.exs says it where Hex is there and no checkouts of dependencies are.
    setup_all do
      script = """
      defmodule Hex, do: nil
      Mix.start()
      Code.require_file("mix.exs")
      project = ExPhil.Native.MixProject.project()
      IO.write(["project: ", project |> Keyword.take([:deps, :package]) |> :erlang.term_to_binary() |> Base.encode64()])
      """

      env = [{"EXPHIL_DEPS_PATH", nil}, {"EXPHIL_NATIVE_NO_HEX", nil}]
      {words, 0} = System.cmd("elixir", ["-e", script], env: env)
      [_, project] = String.split(words, "project: ")
      {:ok, project: project |> Base.decode64!() |> :erlang.binary_to_term()}
    end

    test "its files are all that the compile task and cargo ask for", %{project: project} do
      files = project[:package][:files]

      [_, members] = Regex.run(~r/members = \[(.*)\]/, File.read!("native/Cargo.toml"))
      manifests = for [_, member] <- Regex.scan(~r/"(.+?)"/, members), do: "native/#{member}/Cargo.toml"

      sources = ~w(mix.exs mix/*.exs lib/**/*.ex native/Cargo.* native/*/build.rs native/*/src/**/*.rs
                   native/selective_scan/kernels/**/*)

      needed = manifests ++ Enum.flat_map(sources, &Path.wildcard/1)
      assert Enum.reject(needed, fn path -> Enum.any?(files, &within?(path, &1)) end) == []
      assert Enum.reject(files, &File.exists?/1) == []
    end

    defp within?(path, file), do: path == file or String.starts_with?(path, file <> "/")

    test "its dependencies are optional, or for whoever works on it", %{project: project} do
      for dependency <- project[:deps] do
        {[name, _requirement], options} = dependency |> Tuple.to_list() |> Enum.split(2)
        options = List.flatten(options)
        assert {name, options[:optional] || options[:only] == :dev} == {name, true}
      end

      assert [:nx, :axon, :exla, :telemetry] -- Enum.map(project[:deps], &elem(&1, 0)) == []
    end
  end
end
