defimpl Inspect, for: ExPhil.Native.Tensor do
  import Inspect.Algebra
  alias ExPhil.Native.Tensor
  alias ExPhil.Native.Tensor.Numbers

  # A small tensor is shown whole, a large one by its first numbers:
  # `#ExPhil.Native.Tensor<f32[2][2] [[1.0, 2.0], [3.0, 4.0]]>`, `#ExPhil.Native.Tensor<f32[9][512] [1.0, 2.0, ...]>`.
  def inspect(%Tensor{type: type, shape: shape, data: data} = tensor, opts) do
    # They are numbers, whatever characters they would be.
    opts = %{opts | charlists: :as_lists}
    axes = shape |> Tuple.to_list() |> Enum.map_join(&"[#{&1}]")
    count = shape |> Tuple.to_list() |> Enum.product()

    numbers =
      cond do
        # However many lists there would be.
        count == 0 ->
          "[]"

        opts.limit == :infinity or count <= opts.limit ->
          to_doc(Tensor.to_list(tensor), %{opts | limit: :infinity})

        true ->
          # One more than the limit makes the list end in an ellipsis.
          first = binary_part(data, 0, (opts.limit + 1) * Numbers.bytes(type))
          to_doc(Numbers.decode(first, type), opts)
      end

    concat(["#ExPhil.Native.Tensor<", Tensor.type_name(type), axes, " ", numbers, ">"])
  end
end
