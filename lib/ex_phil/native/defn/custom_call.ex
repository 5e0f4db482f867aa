if Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 3) do
  defmodule ExPhil.Native.Defn.CustomCall do
    @moduledoc false
    # The blocks as XLA custom calls, in the words of the native handlers (docs/xla.md): which target, which attributes,
    # and which memory a call needs beside its tensors. That memory is results of the block, so it must be known when
    # the block is traced, before it is known on which platform it will run.
    alias ExPhil.Native.Defn.Block.{Backward, Forward}
    alias ExPhil.Native.{Nif, SelectiveScan}
    alias ExPhil.Native.SelectiveScan.{Backend, Check, Scratch}

    @doc "The call of a block, or `:skip` where there is no handler for it."
    def lower(block, platform) do
      if fits?(block.options, platform) and here?(platform), do: call(block), else: :skip
    end

    @doc "The target and the attributes of a block, in MLIR's words."
    def call(block) do
      names = [operands: block.inputs ++ beside(block), results: Enum.map(results(block), &elem(&1, 0))]
      attributes = for {name, value} <- names ++ [shapes: shapes(block)], do: {name, Enum.join(value, " ")}

      {target(block),
       for({name, value} <- attributes ++ Scratch.attributes(block.options), do: {"#{name}", mlir(value)})}
    end

    @doc "Whether a call on a platform is what its options or the environment ask for: that is the only one that runs."
    def fits?(options, platform), do: platform in platforms(Backend.asked_for(options))

    # On which device of several XLA will run a call is not known when it is compiled.
    defp platforms(:auto), do: [:host, :cuda]
    defp platforms(:cpu), do: [:host]
    defp platforms(:cuda), do: [:cuda]
    defp platforms({:cuda, _ordinal}), do: []
    defp platforms(:nx), do: []

    # Where XLA refuses the handlers, a call goes to the host like any other.
    defp here?(platform) do
      Nif.xla_register() == {:ok, :registered} and (platform == :host or SelectiveScan.cuda_available?())
    end

    defp shapes(block), do: for(shape <- block.shapes, do: shape |> Tuple.to_list() |> Enum.join(","))

    defp target(%Forward{}), do: "exphil_selective_scan_fwd"
    defp target(%Backward{}), do: "exphil_selective_scan_bwd"

    defp beside(%Forward{}), do: []
    defp beside(%Backward{beside: names}), do: names

    defp results(%Forward{extras: extras}), do: [{:y}, {:final_state} | extras]

    defp results(%Backward{inputs: inputs, extras: extras}),
      do: for(name <- inputs -- [:seq_idx], do: {name}) ++ extras

    @doc """
    `{name, shape, type}` of what the forward and the backward call give beside their results, where EXLA may make calls of
    them.
    """
    def extras(tensors, options) do
      if Code.ensure_loaded?(EXLA.CustomCall), do: scratch(tensors, options), else: {[], []}
    end

    defp scratch(tensors, options) do
      platform = if SelectiveScan.cuda_available?(), do: "CUDA", else: "Host"
      specs = Check.specs(tensors)
      {forward, backward, chunks} = Scratch.of(platform, specs, options)
      {kept(specs, options, chunks) ++ workspace(forward), workspace(backward)}
    end

    defp kept(_specs, _options, 0), do: []

    defp kept(specs, options, chunks),
      do: [{:boundary_states, Scratch.boundary_shape(chunks, specs, options), specs.a.type}]

    defp workspace(0), do: []
    defp workspace(bytes), do: [{:workspace, {bytes}, {:u, 8}}]

    defp mlir(text) when is_binary(text), do: ~s("#{text}")
    defp mlir(flag) when is_boolean(flag), do: "#{Scratch.word(flag)} : i64"
    defp mlir(number), do: "#{number} : f64"
  end
end
