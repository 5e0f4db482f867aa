if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Call do
    @moduledoc false
    # A call with Nx tensors that are expressions or vectorized, or that is to run in Nx: checked by types and shapes,
    # brought into the form of a scan over real numbers, run as a native block or as a scan in Nx, and brought back.
    alias ExPhil.Native.Defn.{Operation, Pairs, Vectors}
    alias ExPhil.Native.SelectiveScan.{Backend, Check, Options}
    alias ExPhil.Native.Tensor
    import Nx.Defn.Kernel, only: [custom_grad: 3]

    @doc "Whether a call with these tensors, by name, can only be expressed, or has axes that only Nx knows."
    def here?(tensors), do: Enum.any?(tensors, fn {_, tensor} -> expression?(tensor) or vectorized?(tensor) end)

    @doc "`{y, final_state}`; `form` is `:scan` or `:step`."
    def forward(form, given, options) do
      tensors = Options.tensors!(given, options)
      Check.run!(form, tensors, options)
      in_defn(tensors, &expression(form, &1, bare(options)))
    end

    @doc "The gradients by the names of the inputs, as PyTorch has them: complex ones are ∂L/∂Re + i ∂L/∂Im."
    def backward(dy, given, options) do
      tensors = Options.tensors!(given, options)
      output_gradients = Options.output_gradients!(dy, options)
      Check.backward!(tensors, output_gradients, options)

      in_defn({tensors, output_gradients}, fn {tensors, output_gradients} ->
        gradients(tensors, output_gradients, bare(options))
      end)
    end

    # The tensors are arguments of the expression.
    defp bare(options) do
      Map.merge(options, Map.new(Options.optional() ++ [:dfinal_state, :boundary_states], &{&1, nil}))
    end

    defp in_defn(tensors, fun) do
      traced = fn tensors -> tensors |> each(&expr/1) |> fun.() end
      run = fn conflict -> Nx.Defn.jit_apply(traced, [each(tensors, &to_nx/1)], on_conflict: conflict) end
      tracing? = match?({Nx.Defn.Expr, _}, Nx.default_backend())

      if tracing? and not expressed?(tensors) do
        # They are no part of the expression, and are scanned now.
        Nx.with_default_backend(Nx.BinaryBackend, fn -> run.(:force) end)
      else
        run.(:reuse)
      end
    end

    # A constant of an expression has no vectorized axes in it: the evaluator takes them for axes of the tensor.
    defp expr(%{vectorized_axes: []} = tensor), do: Nx.Defn.Expr.tensor(tensor)

    defp expr(%{vectorized_axes: axes} = tensor) do
      tensor |> Nx.devectorize(keep_names: false) |> Nx.Defn.Expr.tensor() |> Nx.vectorize(axes)
    end

    defp expressed?({tensors, output_gradients}), do: expressed?(tensors) or expressed?(output_gradients)
    defp expressed?(tensors), do: Enum.any?(tensors, fn {_, tensor} -> expression?(tensor) end)

    # Of tensors by their names, or of two such collections.
    defp each({tensors, output_gradients}, fun), do: {each(tensors, fun), each(output_gradients, fun)}
    defp each(tensors, fun), do: Map.new(tensors, fn {name, tensor} -> {name, fun.(tensor)} end)

    defp to_nx(%Tensor{} = tensor), do: Tensor.to_nx(tensor)
    # Axes have the names of this scan alone.
    defp to_nx(tensor), do: Tensor.nameless(tensor)

    defp expression(form, tensors, options) do
      {scan, vectorized} = tensors |> as_frames(form) |> Vectors.fold(form)
      pairs = Map.new(scan, fn {name, tensor} -> {name, Pairs.from_complex(tensor)} end)
      vectorized? = Enum.any?(tensors, fn {_name, tensor} -> vectorized?(tensor) end)
      {y, state} = run(pairs, %{options | bidirectional: both_ways?(options, form)}, vectorized?)
      state = if Pairs.complex?(scan.a), do: Pairs.to_complex(state), else: state
      {y |> restored(:y, vectorized) |> as_given(form), restored(state, :final_state, vectorized)}
    end

    defp restored(result, name, vectorized), do: vectorized.(name, result)

    # A step is a scan over one frame. A b or c of two axes is {batch, state} where that fits, else constant.
    defp as_frames(tensors, :scan), do: tensors

    defp as_frames(%{x: x, a: a} = tensors, :step) do
      per_frame = [Nx.axis_size(x, 0), Nx.axis_size(a, 1)]

      Map.new(tensors, fn
        {name, tensor} when name in [:x, :dt, :z] ->
          {name, Nx.new_axis(tensor, 1)}

        {name, tensor} when name in [:b, :c] ->
          {name, if(own?(tensor, a, per_frame), do: Nx.new_axis(tensor, 1), else: tensor)}

        other ->
          other
      end)
    end

    defp own?(tensor, a, per_frame) do
      {axes, _components} = tensor |> Nx.shape() |> Tuple.to_list() |> Enum.split(Pairs.rank(tensor, a))
      length(axes) > 2 or axes == per_frame
    end

    defp as_given(y, :scan), do: y
    defp as_given(y, :step), do: Nx.squeeze(y, axes: [1])

    defp both_ways?(_options, :step), do: false
    defp both_ways?(options, :scan), do: Options.both_ways?(options)

    # Not known to the compiler where Nx cannot call out of an expression.
    @block ExPhil.Native.Defn.Block

    defp run(pairs, options, vectorized?) do
      case {Backend.in_defn(options), vectorized?} do
        {:native, _} -> apply(@block, :scan, [pairs, options])
        {:nx, false} -> in_nx(pairs, options)
        {:nx, true} -> with_own_gradient(pairs, options)
      end
    end

    # Nx's gradient of a program counts the axes that the program's result is vectorized over, also within a scan, which has
    # them in its batch. So the scan's is asked for apart.
    defp with_own_gradient(pairs, options) do
      {seq_idx, inputs} = Map.split(pairs, [:seq_idx])
      names = Map.keys(inputs)

      custom_grad(in_nx(pairs, options), Enum.map(names, &inputs[&1]), fn {dy, dstate} ->
        gradients =
          Nx.Defn.grad(inputs, fn inputs ->
            {y, state} = inputs |> Map.merge(seq_idx) |> in_nx(options)
            Nx.add(Nx.sum(Nx.multiply(y, dy)), Nx.sum(Nx.multiply(state, dstate)))
          end)

        Enum.map(names, &gradients[&1])
      end)
    end

    defp in_nx(pairs, options) do
      if Nx.rank(pairs.a) == 2 do
        Operation.scan(pairs, options)
      else
        complex? = &(&1 in [:a, :b, :c, :initial_state])

        {y, state} =
          pairs
          |> Map.new(fn {n, p} -> {n, if(complex?.(n), do: Pairs.to_complex(p), else: p)} end)
          |> Operation.scan(options)

        {y, Pairs.from_complex(state)}
      end
    end

    # Of y·dy + final_state·dfinal_state. Nx's gradients are the conjugates of PyTorch's.
    defp gradients(tensors, output_gradients, options) do
      {seq_idx, inputs} = Map.split(tensors, [:seq_idx])

      inputs
      |> Nx.Defn.grad(fn inputs ->
        {y, final_state} = expression(:scan, Map.merge(inputs, seq_idx), options)

        loss =
          Nx.add(
            inner(y, output_gradients.dy, :dy),
            inner(final_state, output_gradients[:dfinal_state], :dfinal_state)
          )

        loss |> Nx.devectorize() |> Nx.sum()
      end)
      |> Map.new(fn {name, gradient} ->
        gradient = if Pairs.complex?(gradient), do: Nx.conjugate(gradient), else: gradient
        {name, Nx.as_type(gradient, Nx.type(tensors[name]))}
      end)
    end

    # As pairs: either may be complex, with the numbers of the other in pairs.
    defp inner(_output, nil, _name), do: 0.0

    defp inner(output, gradient, name) do
      if gradient.vectorized_axes -- output.vectorized_axes != [] do
        raise ArgumentError,
              "expected #{name} to have no vectorized axes beside those of the inputs, " <>
                "#{inspect(output.vectorized_axes)}, got: #{inspect(gradient.vectorized_axes)}"
      end

      output |> Pairs.from_complex() |> Nx.multiply(Pairs.from_complex(gradient)) |> Nx.sum()
    end

    defp expression?(%Nx.Tensor{data: %Nx.Defn.Expr{}}), do: true
    defp expression?(_tensor), do: false

    defp vectorized?(%Nx.Tensor{vectorized_axes: [_ | _]}), do: true
    defp vectorized?(_tensor), do: false
  end
end
