if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Scans do
    @moduledoc false
    # The states of hᵢ = aᵢ hᵢ₋₁ + bᵢ, all of them, from the pairs (aᵢ, bᵢ) of {batch, seq, dim, state}, by four
    # algorithms with one result. Pairs compose: first (a, b), then (a', b') is (a'a, a'b + b'), which is associative,
    # so a sequence can be scanned as a tree (Blelloch, "Prefix sums and their applications", 1990).
    #
    # | algorithm | multiplications for L frames | depth | memory beside a, b and h |
    # |---|---|---|---|
    # | blelloch | 3L | 2 log₂ L | 2 of their size, halved from level to level |
    # | hillis_steele | 2L log₂ L | log₂ L | 2 of their size |
    # | cumsum | 3LK, K = 16 | log₂ K + 2 log₂(L/K) | K of their size |
    # | sequential | L | L | nothing |
    #
    # The number of operations in the graph grows with the depth, for the sequential one (a `while`) not at all.
    #
    # The gradient of a scan is a scan from the other end: with λᵢ = ∂L/∂hᵢ as a whole, λᵢ = gᵢ + aᵢ₊₁ λᵢ₊₁,
    # ∂L/∂bᵢ = λᵢ and ∂L/∂aᵢ = λᵢ hᵢ₋₁. So it costs one more scan by the same algorithm and no intermediate result
    # is kept, where differentiation of the tree would keep every level, and of the `while` would run it over and
    # over again. As everywhere in Nx, nothing is conjugated.
    import Nx.Defn
    import Nx.Defn.Kernel, only: [custom_grad: 3]

    # Where rows are packed, `fresh` {batch, seq, 1, 1} says which frames begin anew, else it is nil. A decay of zero would
    # not do: zero times an infinite state is no number. So the mask is composed beside the pairs, and what it covers is
    # left out.

    @doc "The states after every frame, of expressions."
    def states(algorithm, decay, input, fresh) do
      algorithm |> run(decay, input, fresh) |> differentiable(algorithm, decay, input, fresh)
    end

    defp differentiable(states, algorithm, decay, input, fresh) do
      custom_grad(states, [decay, input], fn g ->
        # A gradient of this gradient comes to them again.
        states = differentiable(states, algorithm, decay, input, fresh)
        # The decay of the frame that comes next; nothing comes after the last.
        next = shift(decay, -1, 0)
        adjoint = states(algorithm, flip(next), flip(g), fresh && fresh |> shift(-1, 1) |> flip()) |> flip()
        [adjoint |> Nx.multiply(shift(states, 1, 0)) |> left_out(fresh), adjoint]
      end)
    end

    defp run(:blelloch, decay, input, fresh), do: blelloch(decay, input, fresh)
    defp run(:hillis_steele, decay, input, fresh), do: hillis_steele(decay, input, fresh, 1)
    defp run(:cumsum, decay, input, fresh), do: cumsum(decay, input, fresh)
    defp run(:sequential, decay, input, fresh), do: sequential(decay, input, fresh || none(input))

    # Neighbours are composed, the half as long sequence is scanned, which gives the states after every second frame,
    # and those between are one step from them.
    defp blelloch(decay, input, fresh) do
      case Nx.axis_size(input, 1) do
        1 ->
          input

        seq ->
          {a0, a1} = decay |> pad(rem(seq, 2), 1) |> neighbours()
          {b0, b1} = input |> pad(rem(seq, 2), 0) |> neighbours()
          {f0, f1} = if fresh, do: fresh |> pad(rem(seq, 2), 0) |> neighbours(), else: {nil, nil}
          second = blelloch(Nx.multiply(a0, a1), step(a1, b0, b1, f1), either(f0, f1))
          first = step(a0, shift(second, 1, 0), b0, f0)
          first |> interleave(second) |> Nx.slice_along_axis(0, seq, axis: 1)
      end
    end

    # Every pair takes up the one `distance` before it, and the distance doubles (Hillis and Steele, "Data parallel
    # algorithms", 1986).
    defp hillis_steele(decay, input, fresh, distance) do
      if distance >= Nx.axis_size(input, 1) do
        input
      else
        taken = step(decay, shift(input, distance, 0), input, fresh)
        decay = Nx.multiply(decay, shift(decay, distance, 1))
        hillis_steele(decay, taken, either(fresh && shift(fresh, distance, 0), fresh), 2 * distance)
      end
    end

    # Within a window of frames every state is a sum of all inputs up to it, each weighted by the product of the
    # decays since. Products over segments, cumulated from 1, in place of quotients of products from the start, which
    # vanish: the segment sums of Mamba-2 (Dao and Gu, 2024), without their logarithm, which a decay below zero has
    # none of. From window to window by the tree.
    @window 16
    defp cumsum(decay, input, fresh) do
      {batch, seq, dim, state} = Nx.shape(input)
      window = min(seq, @window)
      windows = div(seq + window - 1, window)

      [decay, input, begun] =
        for {tensor, filler} <- [{decay, 1}, {input, 0}, {fresh || none(input), 0}] do
          {_, _, dim, state} = Nx.shape(tensor)
          tensor |> pad(windows * window - seq, filler) |> Nx.reshape({batch, windows, window, dim, state})
        end

      # How often the state has begun anew within the window, up to every frame.
      begun = begun |> Nx.as_type(:s32) |> Nx.cumulative_sum(axis: 2)

      # {batch, windows, to, from, dim, state}
      pairs = {batch, windows, window, window, dim, state}
      [to, from] = for axis <- [2, 3], do: Nx.iota(pairs, axis: axis)
      decays = decay |> Nx.new_axis(3) |> Nx.broadcast(pairs)
      segment = Nx.select(Nx.greater(to, from), decays, 1.0) |> Nx.cumulative_product(axis: 2)
      within = segment |> Nx.multiply(Nx.new_axis(input, 2))
      forgotten = Nx.not_equal(Nx.new_axis(begun, 3), Nx.new_axis(begun, 2)) |> Nx.broadcast(pairs)
      within = within |> left_out(Nx.logical_or(Nx.less(to, from), forgotten)) |> Nx.sum(axes: [3])

      since_start = Nx.cumulative_product(decay, axis: 2)
      since_begun = Nx.greater(begun, 0)
      last = fn tensor -> tensor |> Nx.slice_along_axis(window - 1, 1, axis: 2) |> Nx.squeeze(axes: [2]) end
      ends = blelloch(last.(since_start), last.(within), fresh && last.(since_begun))
      before = ends |> shift(1, 0) |> Nx.new_axis(2)

      since_start
      |> step(before, within, since_begun)
      |> Nx.reshape({batch, windows * window, dim, state})
      |> Nx.slice_along_axis(0, seq, axis: 1)
    end

    defnp sequential(decay, input, fresh) do
      {_, _, states, _, _, _} =
        while {i = 0, state = Nx.slice_along_axis(input, 0, 1, axis: 1) * 0, states = input, decay, input, fresh},
              i < Nx.axis_size(input, 1) do
          now = fn tensor -> Nx.slice_along_axis(tensor, i, 1, axis: 1) end
          state = step(now.(decay), state, now.(input), now.(fresh))
          {i + 1, state, Nx.put_slice(states, [0, i, 0, 0], state), decay, input, fresh}
        end

      states
    end

    deftransformp step(decay, state, input, fresh) do
      decay |> Nx.multiply(state) |> left_out(fresh) |> Nx.add(input)
    end

    defp left_out(tensor, nil), do: tensor
    defp left_out(tensor, mask), do: mask |> Nx.broadcast(Nx.shape(tensor)) |> Nx.select(0.0, tensor)

    defp either(nil, nil), do: nil
    defp either(left, right), do: Nx.logical_or(left, right)

    defp none(input),
      do: Nx.broadcast(Nx.tensor(0, type: :u8), {Nx.axis_size(input, 0), Nx.axis_size(input, 1), 1, 1})

    defp flip(tensor), do: Nx.reverse(tensor, axes: [1])

    # What was at i comes to be at i + by; `value` comes in.
    defp shift(tensor, by, value), do: Nx.pad(tensor, cast(value, tensor), along(tensor, {by, -by, 0}))

    defp pad(tensor, 0, _value), do: tensor
    defp pad(tensor, count, value), do: Nx.pad(tensor, cast(value, tensor), along(tensor, {0, count, 0}))

    defp along(tensor, config), do: List.replace_at(List.duplicate({0, 0, 0}, Nx.rank(tensor)), 1, config)

    defp cast(value, tensor), do: Nx.tensor(value, type: Nx.type(tensor))

    defp neighbours(tensor) do
      {batch, seq, dim, state} = Nx.shape(tensor)
      pairs = Nx.reshape(tensor, {batch, div(seq, 2), 2, dim, state})
      one = fn index -> pairs |> Nx.slice_along_axis(index, 1, axis: 2) |> Nx.squeeze(axes: [2]) end
      {one.(0), one.(1)}
    end

    defp interleave(first, second) do
      {batch, half, dim, state} = Nx.shape(first)
      [first, second] |> Nx.stack(axis: 2) |> Nx.reshape({batch, 2 * half, dim, state})
    end
  end
end
