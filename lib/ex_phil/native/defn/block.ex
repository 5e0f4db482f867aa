if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Block do
    @moduledoc false
    # The native scan as one node of an expression, with the native backward pass as its gradient: an `Nx.block`, so
    # that a compiler can put a call of its own in its place (`EXLA.CustomCall`), whose default is a call of the
    # native library from the host (`Nx.runtime_call`). The gradient of a runtime call would be zero without a word,
    # so everything here has one of its own.
    #
    # Nx before 0.12 has no blocks and gets the runtime call alone; before 0.11 it has neither.
    import Nx.Defn.Kernel, only: [custom_grad: 3]
    alias ExPhil.Native.SelectiveScan

    defmodule Forward do
      @moduledoc false
      # `inputs` are the names of the operands in their order; the results are y and final_state.
      defstruct [:inputs, :options]
    end

    defmodule Backward do
      @moduledoc false
      # `inputs` are the names of the operands of the forward pass, which dy and dfinal_state follow; the results are
      # the gradients of all of them but seq_idx.
      defstruct [:inputs, :options]
    end

    @optional [:d, :z, :dt_bias, :initial_state, :seq_idx]
    @inputs [:x, :dt, :a, :b, :c | @optional]
    @upstream [:dy, :dfinal_state]

    @doc "Whether this Nx can call out of an expression at all."
    def available?, do: function_exported?(Nx, :runtime_call, 4)

    @doc """
    `{y, final_state}` of a scan. `tensors` are expressions by their names, complex numbers as pairs; `options` those of
    the call.
    """
    def scan(tensors, options) do
      inputs = inputs(tensors)
      {y, final_state} = results = run(%Forward{inputs: inputs, options: options}, in_order(tensors, inputs))

      custom_grad(results, in_order(tensors, differentiable(inputs)), fn {dy, dfinal_state} ->
        gradients = backward(tensors, like(dy, y), like(dfinal_state, final_state), options)
        in_order(gradients, differentiable(inputs))
      end)
    end

    @doc "The gradients of a scan by the names of its inputs."
    def backward(tensors, dy, dfinal_state, options) do
      inputs = inputs(tensors)
      operands = in_order(tensors, inputs) ++ [dy, dfinal_state]
      results = run(%Backward{inputs: inputs, options: options}, operands)

      once =
        custom_grad(results, in_order(tensors, differentiable(inputs)) ++ [dy, dfinal_state], fn _ ->
          raise ArgumentError,
                "the native selective scan has first derivatives only; use backend: :nx, which has them all"
        end)

      differentiable(inputs) |> Enum.zip(Tuple.to_list(once)) |> Map.new()
    end

    defp inputs(tensors), do: Enum.filter(@inputs, &is_map_key(tensors, &1))
    defp differentiable(inputs), do: List.delete(inputs, :seq_idx)
    defp in_order(tensors, names), do: Enum.map(names, &Map.fetch!(tensors, &1))

    # A gradient that nobody asked for comes as a zero without a shape.
    defp like(gradient, output), do: gradient |> Nx.as_type(Nx.type(output)) |> Nx.broadcast(Nx.shape(output))

    if function_exported?(Nx, :block, 4) do
      defp run(block, operands) do
        default = Function.capture(__MODULE__, :default, 1 + length(operands))
        Nx.block(block, operands, results(block, operands), default)
      end
    else
      defp run(block, operands), do: call(block, operands)
    end

    # The default of a block takes every operand as an argument.
    for count <- 5..(length(@inputs) + length(@upstream)) do
      operands = Macro.generate_arguments(count, __MODULE__)
      @doc false
      def default(block, unquote_splicing(operands)), do: call(block, unquote(operands))
    end

    if function_exported?(Nx, :runtime_call, 4) do
      defp call(block, operands) do
        Nx.runtime_call(results(block, operands), List.to_tuple(operands), [block: block], &__MODULE__.native/2)
      end
    end

    @doc false
    def native(operands, block: %Forward{inputs: inputs, options: options}) do
      tensors = inputs |> Enum.zip(Tuple.to_list(operands)) |> Map.new()
      apply(SelectiveScan, :scan_with_state, arguments(tensors, options))
    end

    def native(operands, block: %Backward{inputs: inputs, options: options}) do
      {operands, [dy, dfinal_state]} = operands |> Tuple.to_list() |> Enum.split(length(inputs))
      tensors = inputs |> Enum.zip(operands) |> Map.new() |> Map.put(:dfinal_state, dfinal_state)
      gradients = apply(SelectiveScan, :backward, [dy | arguments(tensors, options)])
      gradients |> in_order(differentiable(inputs)) |> List.to_tuple()
    end

    defp arguments(tensors, options) do
      settings = options |> Map.from_struct() |> Map.delete(:algorithm) |> Map.merge(tensors)
      {given, settings} = Map.split(settings, [:x, :dt, :a, :b, :c])
      in_order(given, [:x, :dt, :a, :b, :c]) ++ [for({name, value} <- settings, value != nil, do: {name, value})]
    end

    @doc "Templates of the results of a block."
    def results(%Forward{}, [x, _dt, a | _]) do
      state = Tuple.insert_at(Nx.shape(a), 0, elem(Nx.shape(x), 0))
      {template(x), Nx.template(state, Nx.type(a))}
    end

    def results(%Backward{inputs: inputs}, operands) do
      for({name, operand} <- Enum.zip(inputs, operands), name != :seq_idx, do: template(operand))
      |> List.to_tuple()
    end

    defp template(tensor), do: Nx.template(Nx.shape(tensor), Nx.type(tensor))
  end
end
