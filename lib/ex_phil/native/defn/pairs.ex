if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Pairs do
    @moduledoc false
    # Complex expressions as real ones with a trailing axis of 2, the form that the native library reads, and back.
    # Nx's gradient of L with respect to z is ∂L/∂Re z - i ∂L/∂Im z, for then the gradient of a product is a product;
    # it does not have that of `Nx.imag/1`, so both ways have theirs here.
    import Nx.Defn.Kernel, only: [custom_grad: 3]

    @doc "The rank of a b or c without the trailing axis of pairs, which each of the tensors of a complex scan may have."
    def rank(tensor, a) do
      complex? = Nx.rank(a) == 3 or complex?(a)
      if complex? and not complex?(tensor), do: Nx.rank(tensor) - 1, else: Nx.rank(tensor)
    end

    @doc "Whether an expression is complex."
    def complex?(tensor), do: match?({:c, _}, Nx.type(tensor))

    @doc "A complex expression as pairs; a real one as it is."
    def from_complex(%{type: {:c, _}} = z) do
      custom_grad(split(z), [z], fn g -> [join(negate_second(Nx.real(g)))] end)
    end

    def from_complex(real), do: real

    @doc "Pairs as a complex expression."
    def to_complex(pairs) do
      custom_grad(join(pairs), [pairs], fn g -> [negate_second(split(g))] end)
    end

    defp split(z), do: Nx.stack([Nx.real(z), Nx.imag(z)], axis: -1)

    defp join(pairs), do: Nx.complex(part(pairs, 0), part(pairs, 1))

    defp negate_second(pairs), do: Nx.multiply(pairs, Nx.tensor([1, -1], type: Nx.type(pairs)))

    defp part(pairs, index), do: pairs |> Nx.slice_along_axis(index, 1, axis: -1) |> Nx.squeeze(axes: [-1])
  end
end
