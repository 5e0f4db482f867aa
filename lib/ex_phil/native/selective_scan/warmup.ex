defmodule ExPhil.Native.SelectiveScan.Warmup do
  @moduledoc false
  # The first calls of a problem, made before anybody waits for them: real ones, on tensors that are all zero, so that
  # what they leave ready is what the next calls need.
  alias ExPhil.Native.{Error, SelectiveScan, Tensor}
  alias ExPhil.Native.SelectiveScan.{Backend, Options}

  @functions [:scan, :step, :backward]
  @optional Options.optional()
  @own [:x, :a, :b, :c, :type, :for | @optional]

  # A result holds its memory until it is collected, so a few are in use at a time: four, as counted in a loop of calls.
  @calls 5

  def run(opts) do
    {own, options} = opts |> Options.among!(@own ++ Options.known(:scan)) |> Keyword.split(@own)
    tensors = tensors(own)
    functions = functions!(Keyword.get(own, :for, [:scan]))
    room!(functions, tensors, options)

    for function <- functions,
        call = call(function, tensors, options),
        _ <- 1..@calls do
      call.()
    end

    :ok
  end

  # Nx's own backend has all states of all frames three times over, and where there is no memory for them the BEAM ends.
  defp room!([:step], _tensors, _options), do: :ok

  defp room!(_functions, %{x: x, dt: dt, a: a, b: b, c: c} = tensors, options) do
    {backend, _why} = SelectiveScan.backend_for(x, dt, a, b, c, options ++ optional(tensors))

    if backend == :nx and not Backend.compiled_nx?() do
      [_dim | states] = Tuple.to_list(a.shape)
      Tensor.zeros(List.to_tuple([3 | Tuple.to_list(x.shape) ++ states]), a.type)
    end
  end

  defp functions!([_ | _] = functions) do
    if not List.improper?(functions) and Enum.all?(functions, &(&1 in @functions)),
      do: Enum.uniq(functions),
      else: wrong_functions!(functions)
  end

  defp functions!(other), do: wrong_functions!(other)

  defp wrong_functions!(got) do
    Error.wrong!(:for, "be a list of #{Error.list(@functions)}", got)
  end

  # The tensors that are given, by their names.
  defp tensors(own) do
    {batch, seq, dim} = x = shape!(own[:x], :x, "{batch, seq, dim}", [3])
    a = shape!(own[:a], :a, "{dim, state} or {dim, state, 2}", [2, 3])
    # Whatever of a is not the channels: the states, of two numbers each where it is complex.
    states = a |> Tuple.delete_at(0) |> Tuple.to_list()
    projection = List.to_tuple([batch, seq | states])

    usual = %{
      d: {dim},
      z: x,
      dt_bias: {dim},
      initial_state: List.to_tuple([batch, dim | states]),
      seq_idx: {batch, seq}
    }

    shapes = %{
      x: x,
      dt: x,
      a: a,
      b: shape!(given(own[:b], projection), :b, "a shape", 2..5),
      c: shape!(given(own[:c], projection), :c, "a shape", 2..5)
    }

    optional =
      for name <- @optional, given = own[name], into: %{} do
        {name, if(given == true, do: usual[name], else: shape!(given, name, "true or a shape", 1..4))}
      end

    # A step has it as an argument, of this shape.
    if (initial = optional[:initial_state]) && initial != usual.initial_state do
      Error.wrong!(:initial_state, "be #{inspect(usual.initial_state)}", initial)
    end

    type = Keyword.get(own, :type, :f32)
    for {name, shape} <- Map.merge(shapes, optional), into: %{}, do: {name, Tensor.zeros(shape, type(name, type))}
  end

  defp given(nil, usual), do: usual
  defp given(shape, _usual), do: shape

  defp shape!(shape, name, what, ranks) do
    axes = if is_tuple(shape), do: Tuple.to_list(shape), else: []

    if length(axes) in ranks and Enum.all?(axes, &(is_integer(&1) and &1 > 0)) do
      shape
    else
      Error.wrong!(name, "be #{what}", shape)
    end
  end

  defp type(:seq_idx, _type), do: :s32
  defp type(name, type) when name in [:x, :dt, :b, :c, :z], do: type
  defp type(_name, type) when type in [:f64, {:f, 64}], do: :f64
  defp type(_name, _type), do: :f32

  defp call(:scan, tensors, options) do
    options = options ++ optional(tensors)
    fn -> SelectiveScan.scan_with_state(tensors.x, tensors.dt, tensors.a, tensors.b, tensors.c, options) end
  end

  defp call(:backward, tensors, options) do
    options = options ++ optional(tensors)
    fn -> SelectiveScan.backward(tensors.x, tensors.x, tensors.dt, tensors.a, tensors.b, tensors.c, options) end
  end

  defp call(:step, tensors, options) do
    {batch, _seq, dim} = tensors.x.shape
    states = tensors.a.shape |> Tuple.delete_at(0) |> Tuple.to_list()
    state = Tensor.zeros(List.to_tuple([batch, dim | states]), tensors.a.type)
    now = Map.new(tensors, fn {name, tensor} -> {name, one_frame(name, tensor, tensors.a.shape)} end)
    options = options ++ (now |> optional() |> Keyword.delete(:initial_state))
    fn -> SelectiveScan.step(state, now.x, now.dt, now.a, now.b, now.c, options) end
  end

  # What has an axis of time, without it.
  defp one_frame(name, %{shape: constant} = tensor, constant) when name in [:b, :c], do: tensor

  defp one_frame(name, tensor, _a) when name in [:x, :dt, :z, :b, :c] do
    Tensor.zeros(Tuple.delete_at(tensor.shape, 1), tensor.type)
  end

  defp one_frame(_name, tensor, _a), do: tensor

  defp optional(tensors), do: tensors |> Map.take(@optional) |> Map.to_list()
end
