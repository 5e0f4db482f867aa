Code.require_file("mix/compile_selective_scan.exs", __DIR__)

defmodule ExPhil.Native.MixProject do
  use Mix.Project

  @version "0.1.0"

  def project do
    [
      app: :exphil_native,
      version: @version,
      elixir: "~> 1.14",
      compilers: [:selective_scan | Mix.compilers()],
      start_permanent: Mix.env() == :prod,
      deps: deps(),
      description: "The Mamba selective scan as one native operation, on CPUs and NVIDIA GPUs",
      package: package(),
      docs: docs()
    ]
  end

  def application, do: [extra_applications: [:logger]]

  # A package of Hex among the dependencies makes every mix command fail where Hex is not installed, even an optional
  # one. All of them are optional here, so they are declared only where they can be had.
  defp deps do
    cond do
      path = System.get_env("EXPHIL_DEPS_PATH") -> deps_in(path)
      System.get_env("EXPHIL_NATIVE_NO_HEX") == "1" -> []
      Code.ensure_loaded?(Hex) -> hex_deps()
      true -> []
    end
  end

  defp hex_deps do
    [
      {:nx, "~> 0.7", optional: true},
      {:axon, "~> 0.8", optional: true},
      # Compiled before this where a project has it. Its large archive is not for whoever works on this one: the
      # environment of a dependency is :prod.
      {:exla, "~> 0.10", optional: true, only: :prod},
      {:telemetry, "~> 1.0", optional: true},
      {:benchee, "~> 1.3", only: :dev, runtime: false},
      {:ex_doc, "~> 0.31", only: :dev, runtime: false}
    ]
  end

  # Checkouts of dependencies, one folder each.
  defp deps_in(path) do
    for project <- Path.wildcard(Path.join(Path.expand(path), "*/mix.exs")) do
      folder = Path.dirname(project)
      {folder |> Path.basename() |> String.to_atom(), path: folder, override: true}
    end
  end

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{},
      # `make ptx` makes kernels.pack: a package without it needs NVRTC where it meets a GPU. The emulator is for tests, and there is
      # a benchmark, but cargo wants every member of a workspace.
      files:
        ~w(lib mix mix.exs README.md CHANGELOG.md LICENSE docs examples/frames.livemd) ++
          ~w(native/Cargo.toml native/Cargo.lock) ++
          ~w(native/selective_scan native/selective_scan_nif native/selective_scan_xla/Cargo.toml) ++
          ~w(native/selective_scan_xla/build.rs native/selective_scan_xla/src) ++
          ~w(native/cuda_emulator/Cargo.toml native/cuda_emulator/src native/cpu_benchmark) ++
          Path.wildcard("priv/kernels.pack")
    ]
  end

  # Formulas between dollar signs are set by KaTeX.
  defp docs do
    [
      main: "readme",
      extras: ["README.md", "CHANGELOG.md", "docs/xla.md", "examples/frames.livemd"],
      assets: %{"docs/images" => "docs/images"},
      groups_for_modules: [
        Scan: [ExPhil.Native.SelectiveScan, ExPhil.Native.Tensor, ExPhil.Native.Error],
        Axon: [ExPhil.Native.Layers, ExPhil.Native.Mamba, ExPhil.Native.Mamba.Serving]
      ],
      groups_for_docs: [Machine: &(&1[:type] == :machine), Scan: &(&1[:type] == :scan)],
      before_closing_head_tag: &katex/1
    ]
  end

  defp katex(:html) do
    """
    <link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/katex@0.16.11/dist/katex.min.css">
    <script defer src="https://cdn.jsdelivr.net/npm/katex@0.16.11/dist/katex.min.js"></script>
    <script defer src="https://cdn.jsdelivr.net/npm/katex@0.16.11/dist/contrib/auto-render.min.js"></script>
    <script>
      window.addEventListener("exdoc:loaded", () =>
        renderMathInElement(document.body, {delimiters: [{left: "$$", right: "$$", display: true}, {left: "$", right: "$", display: false}]})
      )
    </script>
    """
  end

  defp katex(_format), do: ""
end
