defmodule ExPhil.Native.SelectiveScan.Verify do
  @moduledoc false
  # What `mix selective_scan.verify` finds out: how far the methods are from one another on one input, forward and
  # backward; how far the backends are; where the truncated series leave the closed forms. No two methods may give the
  # same: one would stand in for the other.
  alias ExPhil.Native.{SelectiveScan, Tensor}
  alias ExPhil.Native.SelectiveScan.Options

  # Methods apart are at least 1e-3 apart on the input below. One method computed in two ways is below these, the
  # bounds of f32 outputs and gradients.
  @rounding %{outputs: 2.0e-6, gradients: 1.0e-5}

  @doc """
  What is compared: `{label, options}` of every method with each kind of coefficients that it has; poly, which is
  bidirectional unless told otherwise, also in its causal form.
  """
  def variants do
    for method <- Options.methods(),
        coefficients <- [:exact | if(method in Options.with_taylor(), do: [:taylor], else: [])],
        bidirectional <- if(method == :poly, do: [true, false], else: [false]) do
      causal = if method == :poly and not bidirectional, do: ["causal"], else: []
      taylor = if coefficients == :taylor, do: ["taylor"], else: []
      label = Enum.join([to_string(method) | causal ++ taylor], " ")
      {label, [method: method, coefficients: coefficients, bidirectional: bidirectional]}
    end
  end

  @doc "Sequences of random numbers, the same every time: steps and rates as models have them, |AΔ| up to 4."
  def input({batch, seq, dim, state}) do
    :rand.seed(:exsss, {1, 2, 3})
    normal = fn shape -> fill(shape, &:rand.normal/0) end
    between = fn shape, low, high -> fill(shape, fn -> low + (high - low) * :rand.uniform() end) end

    %{
      x: normal.({batch, seq, dim}),
      dt: between.({batch, seq, dim}, 0.01, 1.0),
      a: between.({dim, state}, -4.0, -0.1),
      b: normal.({batch, seq, state}),
      c: normal.({batch, seq, state}),
      dy: normal.({batch, seq, dim})
    }
  end

  defp fill(shape, number) do
    data = for _ <- 1..Tuple.product(shape), into: <<>>, do: <<number.()::float-32-native>>
    Tensor.from_binary(data, :f32, shape)
  end

  @doc """
  The results of every variant on a backend, by its label: `%{outputs: [y], gradients: [dx, ddt, da, db, dc]}`, the
  numbers of each.
  """
  def results(backend, %{x: x, dt: dt, a: a, b: b, c: c, dy: dy}) do
    for {label, options} <- variants(), into: %{} do
      options = [{:backend, backend} | options]
      y = SelectiveScan.scan(x, dt, a, b, c, options)
      gradients = SelectiveScan.backward(dy, x, dt, a, b, c, options)

      {label,
       %{outputs: [numbers(y)], gradients: for(name <- [:x, :dt, :a, :b, :c], do: numbers(gradients[name]))}}
    end
  end

  defp numbers(tensor), do: tensor |> Tensor.to_list() |> List.flatten()

  @doc "How far apart the two that are nearest are, of results in the same order; `:nan` where there is one that is none."
  def nearest(left, right), do: extreme(left, right, &Enum.min/1)

  @doc "How far apart the two that are farthest are, in the same way."
  def farthest(left, right), do: extreme(left, right, &Enum.max/1)

  defp extreme(left, right, choose) do
    distances = Enum.zip_with(left, right, &distance/2)
    if :nan in distances, do: :nan, else: choose.(distances)
  end

  # Relative to the norm of the longer.
  defp distance(left, right) do
    if Enum.all?(left, &is_float/1) and Enum.all?(right, &is_float/1) do
      apart = Enum.zip_with(left, right, &(&1 - &2))
      scale = max(norm(left), norm(right))
      if scale == 0.0, do: 0.0, else: norm(apart) / scale
    else
      :nan
    end
  end

  defp norm(vector), do: vector |> Enum.map(&(&1 * &1)) |> Enum.sum() |> :math.sqrt()

  @doc "The distance of every pair of variants, `{row, column} => distance`, where `labels` has the row after the column."
  def matrix(labels, results, kind) do
    for {row, index} <- Enum.with_index(labels), column <- Enum.take(labels, index), into: %{} do
      {{row, column}, nearest(results[row][kind], results[column][kind])}
    end
  end

  @doc "Whether a distance of two methods is that of one and the same; what is no number cannot tell them apart."
  def identical?(distance, kind), do: distance == :nan or distance <= @rounding[kind]

  @doc "Whether the distance of two backends is more than rounding."
  def apart?(distance, kind), do: distance == :nan or distance > @rounding[kind]

  @doc "In words, the pairs of a matrix that are identical, and those that are no numbers."
  def faults(matrix, kind) do
    for {{row, column}, distance} <- Enum.sort(matrix), identical?(distance, kind) do
      if distance == :nan,
        do: "#{row} and #{column} have #{kind} that are no numbers",
        else: "#{row} and #{column} have the same #{kind} (#{distance} apart)"
    end
  end

  # |z| is looked at up to here, in steps; math says that the series leave sooner.
  @reach 16.0
  @steps 4096
  @parted 1.0e-3

  @doc """
  Where the truncated series of a method leaves its closed form, for a step size: `{parts, changes_sign}`, the smallest
  |z| at which the gains are more than #{@parted} apart, relative, and the one at which the series' gain turns
  negative; `nil` for what does not happen up to #{trunc(@reach)}.
  """
  def departure(method, delta, backend) do
    [exact, taylor] = for coefficients <- [:exact, :taylor], do: gains(method, coefficients, delta, backend)
    pairs = Enum.zip([exact, taylor, grid()])
    {first(pairs, fn {g, t, _} -> abs(t - g) > @parted * abs(g) end), first(pairs, fn {_, t, _} -> t < 0 end)}
  end

  defp first(pairs, fun), do: with({_, _, z} <- Enum.find(pairs, fun), do: z)

  defp grid, do: for(step <- 1..@steps, do: step * @reach / @steps)

  # The gain at every |z| of the grid: with B = C = x = 1, one frame of a state that was zero gives it as y.
  defp gains(method, coefficients, delta, backend) do
    one = Tensor.from_list([[[1.0]]], :f64)
    sequence = fn value -> Tensor.from_list([[List.duplicate(value, @steps)]], :f64) end
    a = Tensor.from_list(Enum.map(grid(), &[-&1 / delta]), :f64)
    options = [method: method, coefficients: coefficients, bidirectional: false, backend: backend]
    sequence.(1.0) |> SelectiveScan.scan(sequence.(delta), a, one, one, options) |> numbers()
  end
end
