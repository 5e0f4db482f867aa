defmodule ExPhil.Native.SelectiveScan.Call do
  @moduledoc false
  # A call from its arguments to its results: the tensors are cast, the backend is chosen and run, or the CPU in its
  # place, and the results take the form that the inputs had.
  alias ExPhil.Native.{Error, Nif, Tensor}
  alias ExPhil.Native.SelectiveScan.{Backend, Check, Cost, Fallback, InPlace, Options, Scratch}

  @doc """
  The forward pass; `form` is `:scan` or `:step`, `wanted` the last of `:y`, `:final_state`, `:boundary_states` that
  is asked for. `{y, final_state | nil, boundary_states | nil}`.
  """
  def forward(form, given, options, wanted) do
    tensors = Options.tensors!(given, options)
    Check.as_written!(form, tensors, options)

    {y, final_state, boundary_states} = forward(form, given, options, wanted, tensors)
    {named(y, elem(given, 0)), final_state, boundary_states}
  end

  defp forward(form, given, options, wanted, tensors) do
    cond do
      in_defn?(tensors) ->
        {y, final_state} = in_nx(:forward, [form, given, options])
        {y, if(wanted != :y, do: final_state), nil}

      ordinal = in_place(:device, [tensors, options]) ->
        case in_place(:forward, [ordinal, form, given, options, wanted]) do
          {:ok, y, final_state} -> {y, final_state, nil}
          {:error, reason} -> now(form, given, options |> out_of_place!(reason) |> Options.cast!(), wanted)
        end

      true ->
        now(form, given, Options.cast!(options), wanted)
    end
  end

  defp now(form, given, options, wanted) do
    {x, dt, a, b, c} = tensors = cast!(given)
    inputs = %{x: x, dt: dt, a: a, b: b, c: c}

    check = fn -> Check.run!(form, Options.tensors!(tensors, options), options) end

    {:ok, y, final_state, boundary_states} =
      run(:forward, options, inputs, check, fn
        :nx -> results(in_nx(:forward, [form, tensors, %{options | backend: :nx}]), wanted)
        :cpu -> Nif.forward_cpu(form, tensors, options, wanted)
        :cpu_dirty -> Nif.forward_cpu_dirty(form, tensors, options, wanted)
        {:cuda, ordinal} -> Nif.forward_cuda(ordinal, form, tensors, options, wanted)
      end)

    {
      like(%{x | data: y}, given, elem(given, 0)),
      state(final_state, x, a, given),
      boundary_states(boundary_states, a, given)
    }
  end

  @doc "The backward pass: the gradients by the names of the inputs."
  def backward(dy, given, options) do
    tensors = Options.tensors!(given, options) ++ Options.output_gradients!(dy, options)
    with_states = [{:boundary_states, options.boundary_states} | tensors]
    Check.as_written!(:scan, with_states, options)

    for {name, gradient} <- backward(dy, given, options, tensors, with_states), into: %{} do
      {name, named(gradient, tensors[name])}
    end
  end

  defp backward(dy, given, options, tensors, with_states) do
    cond do
      in_defn?(with_states) ->
        in_nx(:backward, [dy, given, options])

      ordinal = in_place(:device, [tensors, options]) ->
        case in_place(:backward, [ordinal, dy, given, options]) do
          {:ok, gradients} -> gradients
          {:error, reason} -> backward_now(dy, given, out_of_place!(options, reason))
        end

      true ->
        backward_now(dy, given, options)
    end
  end

  defp backward_now(dy, given, %{initial_state: given_state} = options) do
    options = Options.cast!(options)
    {x, dt, a, b, c} = tensors = cast!(given)
    dy = Tensor.cast!(dy, :dy)
    inputs = %{x: x, dt: dt, a: a, b: b, c: c}

    check = fn ->
      Check.backward!(Options.tensors!(tensors, options), Options.output_gradients!(dy, options), options)
    end

    {:ok, gradients} =
      run(:backward, options, inputs, check, fn
        :nx ->
          in_nx = in_nx(:backward, [dy, tensors, %{options | backend: :nx}])
          {:ok, for({name, tensor} <- in_nx, do: {name, bytes(tensor)})}

        :cpu ->
          Nif.backward_cpu(dy, tensors, options)

        :cpu_dirty ->
          Nif.backward_cpu_dirty(dy, tensors, options)

        {:cuda, ordinal} ->
          Nif.backward_cuda(ordinal, dy, tensors, options)
      end)

    inputs = Map.merge(Map.from_struct(options), inputs)

    for {name, data} <- gradients, into: %{} do
      model = if name == :initial_state, do: given_state, else: model(name, given)
      {name, like(%{inputs[name] | data: data}, given, model)}
    end
  end

  @doc "Which backend the forward pass of a call takes, and why: a step, where x has no frames."
  def backend({x, _dt, _a, _b, _c} = given, opts) do
    form = if match?(%{shape: {_batch, _dim}}, x), do: :step, else: :scan
    options = Options.read!(opts, form)
    tensors = Options.tensors!(given, options)
    eager!(tensors)
    inputs = Check.specs(tensors)
    Check.as_written!(form, tensors, options)
    Check.run!(form, tensors, options)

    case in_place(:device, [tensors, options]) do
      nil -> Backend.explain(:forward, options, inputs)
      ordinal -> {{:cuda, ordinal}, "the tensors lie in the memory of CUDA device #{ordinal}"}
    end
  end

  # An expression runs where its compiler has it run, and vectorized tensors are first brought into one scan.
  defp eager!(tensors) do
    for {name, tensor} <- tensors, in_defn?([{name, tensor}]) do
      Error.wrong!(name, "be a tensor outside of defn and without vectorized axes", tensor)
    end
  end

  # Not known to the compiler where Nx is not among the dependencies.
  @nx ExPhil.Native.Defn.Call

  if Code.ensure_loaded?(Nx) do
    defp in_defn?(tensors), do: @nx.here?(tensors)
    defp bytes(tensor), do: Nx.to_binary(tensor)
  else
    # Never, but not so that a compiler would warn of what comes after.
    defp in_defn?(tensors), do: match?(%{vectorized_axes: _}, tensors[:x])
    defp bytes(tensor), do: Tensor.to_binary(tensor)
  end

  defp in_nx(function, arguments), do: apply(@nx, function, arguments)

  defp in_place(function, arguments), do: apply(InPlace, function, arguments)

  # What failed where the tensors lie is computed on the CPU, where that was left open.
  defp out_of_place!(options, {kind, words} = reason) do
    if kind == :invalid_argument or Backend.asked_for(options) != :auto, do: Error.raise!(reason)
    Fallback.announce(:cuda, :cpu, words)
    %{options | backend: :cpu}
  end

  defp results({y, final_state}, wanted) do
    {:ok, bytes(y), if(wanted != :y, do: bytes(final_state)), nil}
  end

  defp cast!({x, dt, a, b, c}) do
    {Tensor.cast!(x, :x), Tensor.cast!(dt, :dt), Tensor.cast!(a, :a), Tensor.cast!(b, :b), Tensor.cast!(c, :c)}
  end

  # `check` raises where the call is wrong. The native library does so itself, so that it is asked only before anything else goes wrong.
  defp run(pass, options, inputs, check, native) do
    case Backend.choose(pass, options, inputs, check) do
      {:cpu, _} ->
        on_cpu(pass, options, inputs, native)

      {:nx, _} ->
        native.(:nx)

      {cuda, :forced} ->
        native.(cuda)

      {cuda, :chosen} ->
        with {:error, reason} <- native.(cuda), do: in_place_of_cuda(reason, pass, options, inputs, native)
    end
    |> carried_out!()
  end

  defp on_cpu(pass, options, inputs, native) do
    native.(if Cost.short?(Cost.work(pass, inputs, options)), do: :cpu, else: :cpu_dirty)
  end

  defp in_place_of_cuda({:invalid_argument, _} = reason, _pass, _options, _inputs, _native), do: {:error, reason}

  defp in_place_of_cuda({_kind, reason}, pass, options, inputs, native) do
    Fallback.announce(:cuda, :cpu, reason)
    on_cpu(pass, options, inputs, native)
  end

  defp carried_out!({:error, reason}), do: Error.raise!(reason)
  defp carried_out!(answer), do: answer

  # {batch, dim, state} and its type follow from {dim, state} and the type of a.
  defp state(nil, _x, _a, _given), do: nil

  defp state(data, x, a, {_, _, given_a, _, _} = given) do
    like(%Tensor{type: a.type, shape: Scratch.state_shape(x, a), data: data}, given, given_a)
  end

  defp boundary_states(nil, _a, _given), do: nil

  defp boundary_states({axes, data}, a, {_, _, given_a, _, _} = given) do
    like(%Tensor{type: a.type, shape: List.to_tuple(axes), data: data}, given, given_a)
  end

  # Whose gradient is complex where what was given is.
  defp model(:a, {_x, _dt, a, _b, _c}), do: a
  defp model(:b, {_x, _dt, _a, b, _c}), do: b
  defp model(:c, {_x, _dt, _a, _b, c}), do: c
  defp model(_name, {x, _dt, _a, _b, _c}), do: x

  # The axes of a result have the names of those that it is like.
  if Code.ensure_loaded?(Nx) do
    defp named(%Nx.Tensor{} = result, %Nx.Tensor{names: names}) do
      if Enum.any?(names), do: Nx.rename(result, names), else: result
    end
  end

  defp named(result, _like), do: result

  # A result is one of Nx where x was, and complex where its model was.
  if Code.ensure_loaded?(Nx) do
    defp like(result, {%Nx.Tensor{}, _, _, _, _}, %{type: {class, _}}) do
      Tensor.to_nx(result, complex: class == :c)
    end
  end

  defp like(result, _given, _model), do: result
end
