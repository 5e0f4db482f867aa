defmodule Mix.Tasks.SelectiveScan.Verify do
  @shortdoc "Shows that every method of the selective scan computes what no other does"

  @moduledoc """
  Scans one input with every method, forward and backward, on the CPU and, where there is a device, CUDA, and prints

    * the distances between all methods, each with `:exact` coefficients and, where it has them, `:taylor`. A pair that
      is no farther apart than rounding is an error: one method would stand in for the other;
    * where the truncated series leaves the closed form: the smallest |z| (z = AΔ) at which the gains are more than
      1e-3 apart, and the one at which the series changes sign;
    * how far the backends are from one another;
    * a summary.

  Exits with 1 where there is an error.

      mix selective_scan.verify
      mix selective_scan.verify --backend cuda

  ## Options

    * `--backend` - `cpu`, `cuda` or `cuda:N`, may be given more than once; default: the CPU and, where there is a
      device, CUDA
    * `--help` - prints this
  """
  use Mix.Task

  alias ExPhil.Native.{Error, SelectiveScan}
  alias ExPhil.Native.SelectiveScan.{Backend, Options, Verify}

  @requirements ["app.start"]

  # {batch, seq, dim, state}, dim no multiple of a vector's length.
  @sizes {2, 40, 19, 16}
  @deltas [0.01, 0.1, 0.5, 1.0]
  @kinds [:outputs, :gradients]

  @impl true
  def run(args) do
    if Enum.any?(args, &(&1 in ["--help", "-h"])),
      do: Mix.shell().info(Mix.Task.moduledoc(__MODULE__)),
      else: verify(args)
  rescue
    error in Error -> Mix.raise(error.message)
  end

  defp verify(args) do
    backends = backends(args)
    input = Verify.input(@sizes)
    {batch, seq, dim, state} = @sizes

    IO.puts(
      "One input of batch #{batch}, seq #{seq}, dim #{dim}, state #{state} in f32; #{length(labels())} variants."
    )

    report(for backend <- backends, do: {backend, Verify.results(backend, input)})
  end

  # Of the results by their backends.
  @doc false
  def report(results) do
    of_methods = for {backend, of_backend} <- results, kind <- @kinds, do: methods(backend, of_backend, kind)
    of_series = for {backend, _results} <- results, do: series(backend)
    of_backends = for [one, other] <- pairs(results), kind <- @kinds, do: backends(one, other, kind)
    summary(for({backend, _results} <- results, do: backend), List.flatten([of_methods, of_series, of_backends]))
  end

  defp backends(args) do
    case OptionParser.parse(args, strict: [backend: :keep]) do
      {[], [], []} -> if SelectiveScan.cuda_available?(), do: [:cpu, :cuda], else: [:cpu]
      {options, [], []} -> Enum.uniq(for {:backend, name} <- options, do: backend(name))
      {_, rest, wrong} -> Mix.raise("expected --backend cpu, cuda or cuda:N, got: #{inspect(rest ++ wrong)}")
    end
  end

  defp backend(name) do
    case Backend.parse(name) do
      {:ok, backend} when backend not in [:auto, :nx] -> backend
      _ -> Mix.raise("expected --backend cpu, cuda or cuda:N, got: #{name}")
    end
  end

  defp name({:cuda, ordinal}), do: "cuda:#{ordinal}"
  defp name(backend), do: to_string(backend)

  defp labels, do: Enum.map(Verify.variants(), &elem(&1, 0))

  # The faults of the distances between the methods on a backend; prints them.
  @doc false
  def methods(backend, results, kind) do
    matrix = Verify.matrix(labels(), results, kind)
    heading("Distances of #{described(kind, "nearest")} on #{name(backend)}")
    IO.puts(table(labels(), matrix, kind))
    for fault <- Verify.faults(matrix, kind), do: "#{name(backend)}: #{fault}"
  end

  defp table(labels, matrix, kind) do
    width = labels |> Enum.map(&String.length/1) |> Enum.max()
    numbered = Enum.with_index(labels, 1)
    head = for {_, number} <- Enum.drop(numbered, -1), do: cell(number)

    rows =
      for {row, number} <- numbered do
        cells = for column <- Enum.take(labels, number - 1), do: cell(mark(matrix[{row, column}], kind))
        label = if cells == [], do: row, else: String.pad_trailing(row, width)
        [cell(number, 3), " ", label, cells]
      end

    Enum.intersperse([[String.duplicate(" ", width + 4), head] | rows], "\n")
  end

  defp mark(distance, kind) do
    if Verify.identical?(distance, kind), do: "!#{short(distance)}", else: short(distance)
  end

  # Where the series of every method leaves the closed form; faulty where it never does.
  defp series(backend) do
    heading("Where :taylor leaves :exact on #{name(backend)}")
    IO.puts([String.pad_trailing("", 10), for(word <- ["Δ", "parts at |z|", "sign at |z|"], do: cell(word, 14))])

    for method <- Options.with_taylor(), delta <- @deltas do
      {parts, changes_sign} = Verify.departure(method, delta, backend)
      cells = for value <- [delta, parts, changes_sign], do: cell(if(value, do: short(value), else: "never"), 14)
      IO.puts([String.pad_trailing(to_string(method), 10), cells])
      if parts, do: [], else: "#{name(backend)}: #{method} has one gain for :exact and :taylor at Δ = #{delta}"
    end
  end

  # The faults of the distances between two backends, method by method; prints them.
  defp backends({one, of_one}, {other, of_other}, kind) do
    heading("Distances of #{described(kind, "farthest")} between #{name(one)} and #{name(other)}")

    for label <- labels() do
      distance = Verify.farthest(of_one[label][kind], of_other[label][kind])
      apart? = Verify.apart?(distance, kind)
      IO.puts([String.pad_trailing(label, 24), cell(if(apart?, do: "!#{short(distance)}", else: short(distance)))])

      if apart?, do: "#{label}: #{kind} of #{name(one)} and #{name(other)} are #{short(distance)} apart", else: []
    end
  end

  defp pairs(list), do: for([one | rest] <- tails(list), other <- rest, do: [one, other])

  defp tails([]), do: []
  defp tails([_ | rest] = list), do: [list | tails(rest)]

  @doc false
  def summary(backends, faults) do
    heading("Summary")
    IO.puts("backends: #{Enum.map_join(backends, ", ", &name/1)}; variants: #{length(labels())}")

    case faults do
      [] ->
        IO.puts(
          "no two variants are the same" <> if(match?([_], backends), do: "", else: ", and the backends agree")
        )

      faults ->
        for fault <- faults, do: IO.puts("ERROR #{fault}")
        Mix.raise("selective_scan.verify found #{length(faults)} error(s)")
    end
  end

  defp described(:outputs, _which), do: "outputs"
  defp described(:gradients, which), do: "gradients (the #{which} of dx, ddt, da, db, dc)"

  defp heading(words), do: IO.puts(["\n", words, "\n", String.duplicate("-", String.length(words))])

  defp cell(content, width \\ 9), do: content |> to_string() |> String.pad_leading(width)

  defp short(:nan), do: "nan"
  defp short(number) when number >= 0.01, do: :erlang.float_to_binary(number * 1.0, decimals: 3)
  defp short(number), do: :io_lib.format("~.2e", [number * 1.0])
end
