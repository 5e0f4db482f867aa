if Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 3) do
  defmodule ExPhil.Native.Defn.Block do
    @moduledoc false
    # The native scan as one node of an expression, with the native backward pass as its gradient: an `Nx.block`, so
    # that a compiler can put a call of its own in its place (`EXLA.CustomCall`), whose default is a call of the
    # native library from the host (`Nx.runtime_call`). The gradient of a runtime call would be zero without a word,
    # so everything here has one of its own.
    #
    # Nx before 0.12 has no blocks and gets the runtime call alone; before 0.11 it has neither, and the scan in an
    # expression is that of Nx.
    import Nx.Defn.Kernel, only: [custom_grad: 3]
    alias ExPhil.Native.Defn.CustomCall
    alias ExPhil.Native.SelectiveScan
    alias ExPhil.Native.SelectiveScan.{Options, Scratch}

    defmodule Forward do
      @moduledoc false
      # `inputs` are the names of the operands in their order, `shapes` their shapes; the results are y, final_state and
      # the extras.
      defstruct [:inputs, :options, shapes: [], extras: []]
    end

    defmodule Backward do
      @moduledoc false
      # `inputs` are the names of the operands of the forward pass, which those `beside` them follow, the output gradients and
      # boundary states; the results are the gradients of all inputs but seq_idx, and the extras. `shapes` are those of all
      # operands.
      defstruct [:inputs, :beside, :options, shapes: [], extras: []]
    end

    @inputs [:x, :dt, :a, :b, :c | Options.optional()]

    @doc """
    `{y, final_state}` of a scan. `tensors` are expressions by their names, complex numbers as pairs; `options` those of
    the call.
    """
    def scan(tensors, options) do
      inputs = inputs(tensors)
      {extras, of_backward} = CustomCall.extras(tensors, options)
      forward = %Forward{inputs: inputs, options: options, extras: extras}
      [y, final_state | more] = forward |> run(in_order(tensors, inputs)) |> Tuple.to_list()

      custom_grad({y, final_state}, in_order(tensors, differentiable(inputs)), fn {dy, dfinal_state} ->
        beside = [dy: like(dy, y), dfinal_state: like(dfinal_state, final_state)] ++ kept(extras, more)
        block = %Backward{inputs: inputs, beside: Keyword.keys(beside), options: options, extras: of_backward}
        backward(block, tensors, Keyword.values(beside))
      end)
    end

    # What the forward pass keeps for the backward pass.
    defp kept([{:boundary_states, _shape, _type} | _], [states | _]), do: [boundary_states: states]
    defp kept(_extras, _results), do: []

    defp backward(block, tensors, beside) do
      gradients = differentiable(block.inputs)

      results =
        block
        |> run(in_order(tensors, block.inputs) ++ beside)
        |> Tuple.to_list()
        |> Enum.take(length(gradients))
        |> List.to_tuple()

      once =
        custom_grad(results, in_order(tensors, gradients) ++ beside, fn _ ->
          raise ArgumentError,
                "the native selective scan has first derivatives only; use backend: :nx, which has them all"
        end)

      Tuple.to_list(once)
    end

    defp inputs(tensors), do: Enum.filter(@inputs, &is_map_key(tensors, &1))
    defp differentiable(inputs), do: List.delete(inputs, :seq_idx)
    defp in_order(tensors, names), do: Enum.map(names, &Map.fetch!(tensors, &1))

    # A gradient that nobody asked for comes as a zero without a shape.
    defp like(gradient, output), do: gradient |> Nx.as_type(Nx.type(output)) |> Nx.broadcast(Nx.shape(output))

    # EXLA does not say how the tensors of a custom call are to lie in memory, and XLA then turns their axes round where
    # that suits what is around it. What has one axis lies as it lies, so operands and results of the block are flat.
    if function_exported?(Nx, :block, 4) do
      defp run(block, operands) do
        block = %{block | shapes: Enum.map(operands, &Nx.shape/1)}
        default = Function.capture(__MODULE__, :default, 1 + length(operands))
        wanted = results(block, operands)
        flat = Nx.block(block, Enum.map(operands, &Nx.flatten/1), each(wanted, &line/1), default)

        shaped(Tuple.to_list(flat), for(template <- Tuple.to_list(wanted), do: Nx.shape(template)))
        |> List.to_tuple()
      end

      # The default of a block takes every operand as an argument: all inputs, and at most three beside them.
      for count <- 5..(length(@inputs) + 3) do
        operands = Macro.generate_arguments(count, __MODULE__)
        @doc false
        def default(block, unquote_splicing(operands)) do
          block |> call(shaped(unquote(operands), block.shapes)) |> each(&Nx.flatten/1)
        end
      end

      defp shaped(tensors, shapes), do: Enum.zip_with(tensors, shapes, &Nx.reshape/2)
      defp line(template), do: Nx.template({Nx.size(template)}, Nx.type(template))
      defp each(tuple, fun), do: tuple |> Tuple.to_list() |> Enum.map(fun) |> List.to_tuple()
    else
      defp run(block, operands), do: call(block, operands)
    end

    if function_exported?(Nx, :runtime_call, 4) do
      defp call(block, operands) do
        Nx.runtime_call(results(block, operands), List.to_tuple(operands), [block: block], &__MODULE__.native/2)
      end
    else
      defp call(block, operands) do
        Nx.runtime_call(results(block, operands), List.to_tuple(operands), &native(&1, block: block))
      end
    end

    # The extras are for the native handlers in a compiled graph; from the host the library is called without them.
    @doc false
    def native(operands, block: %Forward{inputs: inputs, options: options, extras: extras}) do
      tensors = inputs |> Enum.zip(Tuple.to_list(operands)) |> Map.new()
      {y, final_state} = apply(SelectiveScan, :scan_with_state, arguments(tensors, options))
      List.to_tuple([y, final_state | zeros(extras)])
    end

    def native(operands, block: %Backward{inputs: inputs, options: options, extras: extras}) do
      {operands, [dy, dfinal_state | _]} = operands |> Tuple.to_list() |> Enum.split(length(inputs))
      tensors = inputs |> Enum.zip(operands) |> Map.new() |> Map.put(:dfinal_state, dfinal_state)
      gradients = apply(SelectiveScan, :backward, [dy | arguments(tensors, options)])
      List.to_tuple(in_order(gradients, differentiable(inputs)) ++ zeros(extras))
    end

    defp zeros(extras) do
      for {_name, shape, type} <- extras,
          do: Nx.broadcast(Nx.tensor(0, type: type, backend: Nx.BinaryBackend), shape)
    end

    defp arguments(tensors, options) do
      settings = options |> Map.from_struct() |> Map.delete(:algorithm) |> Map.merge(tensors)
      {given, settings} = Map.split(settings, [:x, :dt, :a, :b, :c])
      in_order(given, [:x, :dt, :a, :b, :c]) ++ [for({name, value} <- settings, value != nil, do: {name, value})]
    end

    # Templates.
    defp results(%Forward{extras: extras}, [x, _dt, a | _]) do
      List.to_tuple([template(x), Nx.template(Scratch.state_shape(x, a), Nx.type(a)) | templates(extras)])
    end

    defp results(%Backward{inputs: inputs, extras: extras}, operands) do
      gradients = for {name, operand} <- Enum.zip(inputs, operands), name != :seq_idx, do: template(operand)
      List.to_tuple(gradients ++ templates(extras))
    end

    defp templates(extras), do: for({_name, shape, type} <- extras, do: Nx.template(shape, type))
    defp template(tensor), do: Nx.template(Nx.shape(tensor), Nx.type(tensor))
  end
end
