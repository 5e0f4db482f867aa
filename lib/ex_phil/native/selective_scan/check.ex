defmodule ExPhil.Native.SelectiveScan.Check do
  @moduledoc false
  # Whether a call makes sense, from types and shapes alone. The native `Problem` decides; where the library is not
  # loaded, the same rules in the same order stand here.
  alias ExPhil.Native.{Error, Nif, Tensor}
  alias ExPhil.Native.SelectiveScan.Options

  @sequences [:x, :dt, :b, :c, :z]
  @order [:x, :dt, :a, :b, :c, :d, :z, :dt_bias, :initial_state, :seq_idx]

  @doc "Raises `ArgumentError` where the call is wrong. `tensors` are those of the call by their names."
  def run!(form, tensors, options) do
    specs = Map.new(tensors, fn {name, tensor} -> {name, spec(tensor)} end)

    case Nif.loaded() do
      :ok -> native!(form, specs, options)
      _ -> here!(form, specs, options)
    end
  end

  # Type and shape are what counts, so no numbers are fetched for it.
  defp spec(%Tensor{} = tensor), do: tensor

  if Code.ensure_loaded?(Nx) do
    defp spec(%Nx.Tensor{} = tensor), do: Tensor.of_nx(tensor, <<>>)
  end

  defp native!(form, specs, options) do
    {given, optional} = Map.split(specs, [:x, :dt, :a, :b, :c])
    tensors = {given.x, given.dt, given.a, given.b, given.c}
    with {:error, reason} <- Nif.check(form, tensors, Map.merge(options, optional)), do: Error.raise!(reason)
  end

  @doc """
  Raises where `b` or `c` is complex beside a real `a`. With its trailing 2, a complex {batch, seq, state} would pass for
  a real {batch, seq, groups, state}.
  """
  def real!(tensors) do
    if match?(%{shape: {_, _}}, tensors[:a]) and not match?(%{type: {:c, _}}, tensors[:a]) do
      for name <- [:b, :c], %{type: {:c, bits}} <- [tensors[name]] do
        raise ArgumentError, "expected #{name} to be real where a is real, got: numbers of type c#{bits}"
      end
    end
  end

  @doc "The check without the native library."
  def here!(form, specs, options) do
    sequence = axes!(form, specs)
    options!(form, options, specs)

    for name <- @order,
        spec = specs[name],
        0 in Tuple.to_list(spec.shape),
        do: wrong!(name, "have no empty axis", spec.shape)

    types!(specs)
    {state, components} = system!(specs.a, List.last(sequence))
    shapes!(form, specs, sequence, state, components)
    for name <- [:b, :c], do: projection!(name, specs[name].shape, sequence, state, components)
    numbers!(options)
    :ok
  end

  defp axes!(:scan, %{x: %{shape: {_, _, _} = shape}}), do: Tuple.to_list(shape)
  defp axes!(:step, %{x: %{shape: {_, _} = shape}}), do: Tuple.to_list(shape)
  defp axes!(:scan, %{x: x}), do: wrong!(:x, "have shape {batch, seq, dim}", x.shape)
  defp axes!(:step, %{x: x}), do: wrong!(:x, "have shape {batch, dim}", x.shape)

  defp options!(form, options, specs) do
    %{method: method, coefficients: coefficients, bidirectional: both_ways?} = options
    if method not in Options.methods(), do: wrong!(:method, "be one of #{names(Options.methods())}", method)

    if coefficients not in [:exact, :taylor],
      do: wrong!(:coefficients, "be one of :exact, :taylor", coefficients)

    if form == :step do
      if method == :poly and both_ways? == nil do
        wrong!(:method, "be causal in a step (bidirectional: false says that the causal form is meant)", method)
      end

      if both_ways?, do: wrong!(:bidirectional, "be false in a step", true)
      if options.reverse, do: wrong!(:reverse, "be false in a step", true)
      if specs[:seq_idx], do: wrong!(:seq_idx, "be absent in a step", specs.seq_idx.shape)
    end
  end

  defp numbers!(%{method: method, coefficients: coefficients, dt_limit: limit}) do
    if coefficients == :taylor and method not in Options.with_taylor() do
      wrong!(:coefficients, "be :exact for method #{inspect(method)}, which has no truncated series", :taylor)
    end

    with {min, max} when min > max and is_number(min) and is_number(max) <- limit do
      wrong!(:dt_limit, "be {min, max} with min not above max", limit)
    end
  end

  defp types!(%{x: %{type: type}} = specs) do
    if type not in [f: 32, bf: 16, f: 16, f: 64] do
      wrong!(:x, "have type f32, bf16, f16 or f64", {:type, type})
    end

    own = if type == {:f, 64}, do: type, else: {:f, 32}

    for name <- @order, spec = specs[name] do
      expected = if name in @sequences, do: type, else: own

      cond do
        name == :seq_idx and spec.type != {:s, 32} ->
          wrong!(name, "have type s32", {:type, spec.type})

        name != :seq_idx and spec.type != expected ->
          words = "have type #{Tensor.type_name(expected)} where x has type #{Tensor.type_name(type)}"
          wrong!(name, words, {:type, spec.type})

        true ->
          :ok
      end
    end
  end

  # {state, components}
  defp system!(%{shape: {dim, state}}, dim), do: {state, []}
  defp system!(%{shape: {dim, state, 2}}, dim), do: {state, [2]}

  defp system!(%{shape: shape}, dim) do
    wrong!(:a, "have shape {#{dim}, state}, or {#{dim}, state, 2} for complex", shape)
  end

  defp shapes!(form, specs, [batch | _] = sequence, state, components) do
    dim = List.last(sequence)

    for {name, expected} <- [
          dt: sequence,
          d: [dim],
          z: sequence,
          dt_bias: [dim],
          initial_state: [batch, dim, state] ++ components,
          seq_idx: List.delete_at(sequence, -1)
        ],
        spec = specs[name],
        Tuple.to_list(spec.shape) != expected do
      argument = if {form, name} == {:step, :initial_state}, do: :state, else: name
      wrong!(argument, "have shape #{shape(expected)}", spec.shape)
    end
  end

  defp projection!(name, got, sequence, state, components) do
    lead = List.delete_at(sequence, -1)
    dim = List.last(sequence)
    per_frame = lead ++ [state] ++ components
    constant = [dim, state] ++ components
    groups = got |> Tuple.to_list() |> Enum.at(length(lead))

    fits? =
      Tuple.to_list(got) in [per_frame, constant] or
        (groups != nil and rem(dim, groups) == 0 and Tuple.to_list(got) == lead ++ [groups, state] ++ components)

    if not fits? do
      grouped = Enum.map_join(lead, &"#{&1}, ") <> "groups, " <> Enum.join([state | components], ", ")

      wrong!(
        name,
        "have shape #{shape(per_frame)}, {#{grouped}} with groups a divisor of dim #{dim}, " <>
          "or constant #{shape(constant)}",
        got
      )
    end
  end

  defp names(atoms), do: Enum.map_join(atoms, ", ", &inspect/1)
  defp shape(axes), do: axes |> List.to_tuple() |> inspect()

  defp wrong!(name, expected, got) do
    got = with {:type, type} <- got, do: Tensor.type_name(type), else: (other -> inspect(other))
    raise ArgumentError, "expected #{name} to #{expected}, got: #{got}"
  end
end
