defmodule ExPhil.Native.SelectiveScan.InPlace do
  @moduledoc false
  # Eager calls on Nx tensors that lie in the memory of a CUDA device, whose backend says where (`Nx.to_pointer/2` of
  # EXLA): the device reads them there and writes the results there.
  #
  # The results' memory is that of tensors that the backend makes, by an operation of its own, so that it is the
  # backend's to free, as the memory of any other tensor. (A tensor of `Nx.from_pointer/5` owns nothing: who made it
  # would have to free its memory, after nobody knows when.) Nobody has seen these tensors before the scan has
  # written them.
  #
  # Without Nx, or with one that has no pointers, no tensor lies on a device.
  if Code.ensure_loaded?(Nx) and function_exported?(Nx, :to_pointer, 2) do
    # Not used where this branch is not taken.
    alias ExPhil.Native.{Nif, Tensor}, warn: false
    alias ExPhil.Native.SelectiveScan.{Backend, Check, Devices, Options, Scratch}, warn: false

    @doc "The device that all tensors of a call lie on, `nil` where they do not or where the call is for another backend."
    def device(tensors, options) do
      with backend when backend in [:auto, :cuda] or is_tuple(backend) <- Backend.asked_for(options),
           tensors = Keyword.values(tensors),
           true <- Enum.all?(tensors, &elsewhere?/1),
           {:ok, [_ | _]} <- Devices.all(),
           ranges = Enum.map(tensors, &range/1),
           true <- Enum.all?(ranges),
           {:ok, ordinal} when ordinal != nil <- Nif.cuda_owner(ranges),
           true <- backend in [:auto, :cuda, {:cuda, ordinal}] do
        ordinal
      else
        _ -> nil
      end
    end

    defp elsewhere?(%Nx.Tensor{data: %backend{}}) do
      backend != Nx.BinaryBackend and function_exported?(backend, :to_pointer, 2)
    end

    defp elsewhere?(_tensor), do: false

    # Address and bytes. A backend raises what it likes where it has no address for a tensor: EXLA an ArgumentError of a device
    # that is none of CUDA's, and what its runtime says of a tensor that is gone; Torchx a RuntimeError of every tensor.
    defp range(tensor) do
      case Nx.to_pointer(tensor, mode: :local) do
        {:ok, pointer} -> {pointer.address, pointer.data_size}
        pointer -> {pointer.address, pointer.data_size}
      end
    rescue
      _ in [ArgumentError, RuntimeError] -> nil
    end

    @doc "`{:ok, y, final_state | nil}` on the device, or the error of the native call."
    def forward(ordinal, form, given, options, wanted) do
      # Before memory is made for the results of a call that makes no sense.
      Check.run!(form, Options.tensors!(given, options), options)
      {x, _dt, a, _b, _c} = given
      y = fresh(x, x.shape)
      final_state = if wanted != :y, do: fresh(a, Scratch.state_shape(x, a))
      {tensors, options, held} = at_their_addresses(given, options)
      outputs = {address(y), final_state && address(final_state)}

      with :ok <- Nif.forward_in_place(ordinal, form, tensors, options, outputs, {held, y, final_state}) do
        {:ok, y, final_state}
      end
    end

    @doc "`{:ok, gradients}` by the names of the inputs, or the error of the native call."
    def backward(ordinal, dy, given, options) do
      named = Options.tensors!(given, options)
      Check.backward!(named, Options.output_gradients!(dy, options), options)
      gradients = for {name, tensor} <- named, name != :seq_idx, do: {name, fresh(tensor, tensor.shape)}

      addresses = for {name, tensor} <- gradients, do: {to_string(name), address(tensor)}
      {tensors, options, held} = at_their_addresses(given, options)

      with :ok <-
             Nif.backward_in_place(
               ordinal,
               over(dy),
               tensors,
               options,
               addresses,
               {held, dy, Keyword.values(gradients)}
             ) do
        {:ok, Map.new(gradients)}
      end
    end

    # Memory of the backend for a tensor like another: a result of arithmetic is never a view of what went in.
    defp fresh(like, shape), do: like |> Nx.broadcast(shape) |> Nx.negate() |> Tensor.nameless()

    defp at_their_addresses(given, options) do
      tensors = given |> Tuple.to_list() |> Enum.map(&over/1) |> List.to_tuple()
      names = [:dfinal_state | Options.optional()]
      optional = for name <- names, tensor = Map.fetch!(options, name), do: {name, tensor}
      cast = Map.new(optional, fn {name, tensor} -> {name, over(tensor)} end)
      # The device computes boundary states again.
      {tensors, options |> Map.merge(cast) |> Map.put(:boundary_states, nil), {given, optional}}
    end

    defp over(tensor), do: Tensor.of_nx(tensor, address(tensor))
    defp address(tensor), do: tensor |> range() |> elem(0)
  else
    def device(_tensors, _options), do: nil
  end
end
