defmodule ExPhil.Native.SelectiveScan.Check do
  @moduledoc false
  # Whether a call makes sense, from types, shapes and lengths. The native `Problem` decides; where the library is not
  # loaded, the same rules in the same order stand here, but for those of options alone, which `Options` has, those that are seen
  # before (`as_written!/3`), and those of a backward pass for calls that do not reach it.
  alias ExPhil.Native.{Error, Nif, Tensor}
  alias ExPhil.Native.SelectiveScan.{Options, Scratch}
  alias ExPhil.Native.Tensor.Numbers
  import Numbers, only: [is_finite: 2]

  @sequences [:x, :dt, :b, :c, :z, :dy]
  @order [:x, :dt, :a, :b, :c | Options.optional()]
  @numbers [f: 32, bf: 16, f: 16, f: 64]
  @numbers_expected "have type f32, bf16, f16 or f64"

  @doc "Raises `ArgumentError` where the call is wrong. `tensors` are those of the call by their names."
  def run!(form, tensors, options) do
    case Nif.loaded() do
      :ok -> native!(form, specs(tensors), options)
      _ -> here!(form, specs(tensors), options)
    end

    for {name, tensor} <- tensors, do: length!(called(name, form), tensor)
    :ok
  end

  @doc "Tensors by their names, as the native library sees them; those of Nx without their numbers, which stay where they are."
  def specs(tensors), do: Map.new(tensors, fn {name, tensor} -> {name, spec(tensor)} end)

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
  Raises where a backward pass is wrong: its `tensors`, the `output_gradients` by their names, or the boundary states among
  the options.
  """
  def backward!(tensors, output_gradients, options) do
    run!(:scan, tensors, options)
    %{x: x, a: a} = specs = specs(tensors)
    of_outputs = for {name, tensor} <- output_gradients, do: {name, spec(tensor)}
    for {name, spec} <- of_outputs, do: formed!(name, spec)
    shapes = [dy: x.shape, dfinal_state: Scratch.state_shape(x, a)]
    for {name, spec} <- of_outputs, do: as_expected!(name, spec, x.type, shapes[name])
    if states = options.boundary_states, do: boundary_states!(spec(states), specs, options)

    for {name, tensor} <- [{:boundary_states, options.boundary_states} | output_gradients],
        do: length!(name, tensor)

    :ok
  end

  defp boundary_states!(states, specs, options) do
    formed!(:boundary_states, states)
    shape = states |> chunks(specs, options) |> Scratch.boundary_shape(specs, options)
    as_expected!(:boundary_states, states, specs.x.type, shape)
  end

  # How many frames make a chunk is for the native library to know. Without it, nobody can say that a number is wrong.
  defp chunks(states, specs, options) do
    case {Nif.loaded(), states.shape} do
      {:ok, _shape} -> "Host" |> Scratch.of(specs, options) |> elem(2)
      {_error, shape} when tuple_size(shape) > 2 -> elem(shape, 2)
      {_error, _shape} -> :chunks
    end
  end

  defp as_expected!(name, spec, of_x, shape) do
    type!(name, spec.type, of_x)
    if spec.shape != shape, do: wrong!(name, "have shape #{shape |> Tuple.to_list() |> shape()}", spec.shape)
  end

  # Whether a tensor has the numbers that it stands for. Those of Nx have.
  defp length!(name, %Tensor{type: type, shape: shape, data: data}) do
    expected = Numbers.bytes(type) * Tuple.product(shape)
    if byte_size(data) != expected, do: wrong!(name, "hold #{expected} bytes", {:bytes, byte_size(data)})
  end

  defp length!(_name, _of_nx), do: :ok

  # Whether the fields of a struct are what they are to be, in the order and the words in which the native library reads one.
  defp formed!(name, %{type: type, shape: shape, data: data}) do
    if not match?({class, bits} when is_atom(class) and is_integer(bits), type) do
      wrong!(name, "have a type such as {:f, 32}", type)
    end

    element!(name, type)

    if not (is_tuple(shape) and shape |> Tuple.to_list() |> Enum.all?(&(is_integer(&1) and &1 >= 0))) do
      wrong!(name, "have a shape that is a tuple of positive integers", shape)
    end

    if not is_binary(data), do: wrong!(name, "have data that is a binary", data)
  end

  @doc """
  What is seen before anything else, with the library and without, for only here it is known how the caller wrote it: complex
  numbers of Nx, and limits.
  """
  def as_written!(form, tensors, options) do
    complex!(form, tensors)
    if tensors[:x].type in @numbers, do: limit!(options.dt_limit, tensors[:x].type)
  end

  # Where what is no state is complex, where anything is beside a real `a`, or where a complex `a` has another rank than 2.
  # With its trailing 2, a complex {dim} would pass for a real {dim, 2}, a complex {batch, seq, state} for a real {batch,
  # seq, groups, state}, and a complex {batch, seq} for a real {batch, seq, 2}.
  defp complex!(form, tensors) do
    for name <- [:x, :dt, :d, :z, :dt_bias, :dy], do: real!(name, tensors[name], "")

    case tensors[:a] do
      %{type: {:c, bits}, shape: shape} when tuple_size(shape) != 2 ->
        wrong!(:a, "have shape {dim, state} where its numbers are of type c#{bits}", shape)

      %{type: {class, _bits}, shape: {_dim, _state}} when class != :c ->
        for name <- [:b, :c, :initial_state, :dfinal_state, :boundary_states] do
          real!(called(name, form), tensors[name], " where a is real")
        end

      %{type: {:c, _bits}} ->
        for name <- [:b, :c, :initial_state, :dfinal_state, :boundary_states],
            do: pairs!(called(name, form), tensors[name])

        parts!(form, tensors)

      _pairs ->
        parts!(form, tensors)
    end
  end

  # Beside complex numbers as such.
  defp pairs!(_name, nil), do: :ok
  defp pairs!(_name, %{type: {:c, _bits}}), do: :ok

  defp pairs!(name, %{shape: shape}) when is_tuple(shape) do
    last = tuple_size(shape) - 1

    if last < 0 or elem(shape, last) != 2,
      do: wrong!(name, "be complex where a is, or to have a trailing axis of 2", {:real, shape})
  end

  defp pairs!(_name, _forged), do: :ok

  # The parts of a complex number have the type of a real one, but Nx has none with parts of 16 bits.
  defp parts!(form, tensors) do
    %{type: of_x} = tensors[:x]

    for {name, %{type: {:c, bits}}} <- tensors, of_x in @numbers do
      part = if name in @sequences, do: of_x, else: of_states(of_x)

      if part != {:f, div(bits, 2)} do
        words = "have type #{complex_name(part)} where x has type #{Tensor.type_name(of_x)}"
        wrong!(called(name, form), words, {:complex, bits, part})
      end
    end
  end

  defp complex_name({:f, bits}) when bits > 16, do: "c#{2 * bits}"
  defp complex_name(narrow), do: Tensor.type_name(narrow)

  defp real!(name, %{type: {:c, bits}}, where) do
    raise ArgumentError, "expected #{name} to be real#{where}, got: numbers of type c#{bits}"
  end

  defp real!(_name, _real, _where), do: :ok

  @doc "The check without the native library."
  def here!(form, specs, options) do
    tensors = in_order(form, specs)
    for {name, spec} <- tensors, do: formed!(name, spec)
    sequence = axes!(form, specs.x)
    if form == :step, do: causal!(options, specs[:seq_idx])
    for {name, spec} <- tensors, 0 in Tuple.to_list(spec.shape), do: wrong!(name, "have no empty axis", spec.shape)
    if specs.x.type not in @numbers, do: wrong!(:x, @numbers_expected, {:type, specs.x.type})
    {state, components} = system!(specs.a, List.last(sequence))
    for {name, spec} <- tensors, do: type!(name, spec.type, specs.x.type)
    for {name, spec} <- tensors, do: shape!(name, spec.shape, sequence, state, components)
    for name <- [:b, :c], do: projection!(name, specs[name].shape, sequence, state, components)
    fits_in_memory!(sequence, state, options)
    :ok
  end

  defp in_order(form, specs), do: for(name <- @order, spec = specs[name], do: {called(name, form), spec})

  # The state of a step is an argument of its own.
  defp called(:initial_state, :step), do: :state
  defp called(name, _form), do: name

  @doc "Raises where no tensor of a scan can have the type; which one this can have, depends on that of `x`."
  def element!(:seq_idx, type) when type not in [{:s, 32} | @numbers],
    do: wrong!(:seq_idx, "have type s32", {:type, type})

  def element!(name, type) when type not in [{:s, 32} | @numbers],
    do: wrong!(name, @numbers_expected, {:type, type})

  def element!(_name, _type), do: :ok

  defp axes!(:scan, %{shape: {_, _, _} = shape}), do: Tuple.to_list(shape)
  defp axes!(:step, %{shape: {_, _} = shape}), do: Tuple.to_list(shape)
  defp axes!(:scan, x), do: wrong!(:x, "have shape {batch, seq, dim}", x.shape)
  defp axes!(:step, x), do: wrong!(:x, "have shape {batch, dim}", x.shape)

  @doc "Raises where a step is not causal, by its options and `seq_idx`."
  def causal!(%{method: method, bidirectional: both_ways?} = options, seq_idx) do
    if both_ways? == nil and Options.both_ways?(options) do
      wrong!(:method, "be causal in a step (bidirectional: false says that the causal form is meant)", method)
    end

    if both_ways?, do: wrong!(:bidirectional, "be false in a step", true)
    if options.reverse, do: wrong!(:reverse, "be false in a step", true)
    if seq_idx, do: wrong!(:seq_idx, "be absent in a step", seq_idx.shape)
  end

  # {state, components}
  defp system!(%{shape: {dim, state}}, dim), do: {state, []}
  defp system!(%{shape: {dim, state, 2}}, dim), do: {state, [2]}

  defp system!(%{shape: shape}, dim) do
    wrong!(:a, "have shape {#{dim}, state}, or {#{dim}, state, 2} for complex", shape)
  end

  defp type!(:seq_idx, {:s, 32}, _of_x), do: :ok
  defp type!(:seq_idx, type, _of_x), do: wrong!(:seq_idx, "have type s32", {:type, type})

  defp type!(name, type, of_x) do
    expected = if name in @sequences, do: of_x, else: of_states(of_x)

    if type != expected do
      words = "have type #{Tensor.type_name(expected)} where x has type #{Tensor.type_name(of_x)}"
      wrong!(name, words, {:type, type})
    end
  end

  defp of_states({:f, 64}), do: {:f, 64}
  defp of_states(_narrower), do: {:f, 32}

  defp shape!(name, shape, [batch | _] = sequence, state, components) do
    dim = List.last(sequence)

    expected =
      case name do
        name when name in [:dt, :z] -> sequence
        name when name in [:d, :dt_bias] -> [dim]
        name when name in [:initial_state, :state] -> [batch, dim, state] ++ components
        :seq_idx -> List.delete_at(sequence, -1)
        _ -> nil
      end

    if expected && Tuple.to_list(shape) != expected, do: wrong!(name, "have shape #{shape(expected)}", shape)
  end

  defp limit!({min, max}, of_x) do
    if held(min, of_x) == :infinity or held(max, of_x) == :neg_infinity do
      words = "be {min, max} with min below :infinity and max above :neg_infinity, in the type of the scan"
      wrong!(:dt_limit, words, {min, max})
    end

    # An infinity is a minimum from below or a maximum from above.
    if is_number(min) and is_number(max) and min > max do
      wrong!(:dt_limit, "be {min, max} with min not above max", {min, max})
    end
  end

  defp limit!(nil, _of_x), do: :ok

  @doc "A limit as a scan of such numbers has it: what is nearer to an infinity than to the greatest of them is that."
  def held(limit, {:f, 64}), do: limit
  def held(limit, _narrower) when not is_number(limit) or is_finite(limit, {:f, 32}), do: limit
  def held(limit, _narrower), do: if(limit > 0, do: :infinity, else: :neg_infinity)

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

  # Sizes are computed in 64 bits where the scan runs, of whole vectors and blocks in each direction.
  defp fits_in_memory!(sequence, state, options) do
    {[batch | seq], [dim]} = Enum.split(sequence, -1)
    seq = List.first(seq, 1)

    if Options.directions(options) * batch * seq * whole(dim, 128) * whole(state, 16) * 2 * 8 >= 2 ** 63 do
      wrong!(:x, "have states that can be counted", {:states, {batch, seq, dim}, state})
    end
  end

  defp whole(axis, block), do: div(axis + block - 1, block) * block

  defp shape(axes), do: "{#{Enum.join(axes, ", ")}}"

  defp wrong!(name, expected, got) do
    raise ArgumentError, "expected #{name} to #{expected}, got: #{words(got)}"
  end

  defp words({:type, type}), do: Tensor.type_name(type)
  defp words({:bytes, count}), do: "#{count} bytes"
  defp words({:real, shape}), do: "real numbers of shape #{inspect(shape)}"

  defp words({:complex, bits, {_class, 16}}),
    do: "c#{bits}; complex numbers of 16 bits are given as a trailing axis of 2"

  defp words({:complex, bits, _part}), do: "c#{bits}"
  defp words({:states, shape, count}), do: "#{inspect(shape)} and #{count} states"
  defp words(other), do: inspect(other)
end
