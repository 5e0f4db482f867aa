if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Operation do
    @moduledoc false
    # The whole operation in Nx, on expressions: what runs where there is no native library, and what the native one
    # is compared with. All states of all frames exist at once, {batch, seq, dim, state}, which the native library
    # never does: see `ExPhil.Native.Defn.Scans` for what each algorithm takes beside them.
    import Nx.Defn.Kernel, only: [custom_grad: 3]
    alias ExPhil.Native.Defn.{Coefficients, Scans}
    alias ExPhil.Native.SelectiveScan.Check

    @doc """
    `{y, final_state}` of a checked scan. `tensors` is a map of all that was given, by their names, with complex numbers
    as such; `options` are those of the call, where `bidirectional` is decided.
    """
    def scan(tensors, options) do
      original = tensors.x
      given = tensors |> in_the_type_of_the_state() |> in_the_order_of_the_scan(options)
      packing = packing(given[:seq_idx])
      given = counted_frames(given, packing)
      delta = delta(given, options)
      pairs = given |> pairs(delta, options) |> counted(packing)

      forward = states(options, pairs, fresh(packing, :forward), given[:initial_state])
      sum = read(given, weighed_states(forward, packing, pairs, options))

      y = given |> skip(sum) |> gate(given[:z]) |> only(packing) |> ordered(options)
      {Nx.as_type(y, Nx.type(original)), last(forward)}
    end

    # f32, or f64 where x is.
    defp in_the_type_of_the_state(tensors) do
      {complex?, own} =
        case Nx.type(tensors.a) do
          {:c, bits} -> {true, {:f, div(bits, 2)}}
          real -> {false, real}
        end

      Map.new(tensors, fn
        {name, tensor} when name in [:x, :dt, :z] -> {name, Nx.as_type(tensor, own)}
        {name, tensor} when name in [:b, :c] and not complex? -> {name, Nx.as_type(tensor, own)}
        other -> other
      end)
    end

    defp in_the_order_of_the_scan(tensors, %{reverse: false}), do: tensors

    defp in_the_order_of_the_scan(tensors, %{reverse: true}) do
      Map.new(tensors, fn
        {name, tensor} when name in [:x, :dt, :z, :seq_idx] -> {name, flip(tensor)}
        {name, tensor} when name in [:b, :c] -> {name, if(Nx.rank(tensor) > 2, do: flip(tensor), else: tensor)}
        other -> other
      end)
    end

    defp ordered(y, %{reverse: reverse}), do: if(reverse, do: flip(y), else: y)

    # Which frames of packed rows count, and which begin another sequence than the frame before them, seen from each
    # end.
    defp packing(nil), do: nil

    defp packing(seq_idx) do
      %{
        counts: Nx.greater_equal(seq_idx, 0),
        forward: begins(seq_idx),
        backward: seq_idx |> flip() |> begins() |> flip()
      }
    end

    # What is in the other frames, be it no number, has no part in results and gradients.
    defp counted_frames(given, nil), do: given

    defp counted_frames(given, %{counts: counts}) do
      Map.new(given, fn {name, tensor} ->
        if name in [:x, :dt, :z] or (name in [:b, :c] and Nx.rank(tensor) > 2) do
          {name, counts |> Nx.broadcast(Nx.shape(tensor), axes: [0, 1]) |> Nx.select(tensor, 0.0)}
        else
          {name, tensor}
        end
      end)
    end

    # The index is compared with that of the last frame before that counts.
    defp begins(seq_idx) do
      counts = Nx.greater_equal(seq_idx, 0)
      at = Nx.select(counts, Nx.iota(Nx.shape(seq_idx), axis: 1), -1) |> Nx.cumulative_max(axis: 1)
      before = Nx.pad(at, -1, [{0, 0, 0}, {1, -1, 0}])
      index_before = Nx.take_along_axis(seq_idx, Nx.max(before, 0), axis: 1)
      other = Nx.logical_and(Nx.greater_equal(before, 0), Nx.not_equal(index_before, seq_idx))
      Nx.logical_and(counts, other)
    end

    # In the order of mamba_ssm: bias, softplus (the identity above 20), limits.
    defp delta(given, options) do
      delta = if bias = given[:dt_bias], do: Nx.add(given.dt, bias), else: given.dt
      delta = if options.dt_softplus, do: softplus(delta), else: delta
      limit(delta, options.dt_limit)
    end

    defp softplus(delta) do
      large = Nx.greater(delta, 20.0)
      Nx.select(large, delta, Nx.log1p(Nx.exp(Nx.select(large, 0.0, delta))))
    end

    defp limit(delta, nil), do: delta

    # What is infinite limits nothing.
    defp limit(delta, {min, max}) do
      [min, max] = for limit <- [min, max], do: Check.held(limit, Nx.type(delta))
      delta = if is_number(min), do: bounded(delta, &Nx.less/2, min), else: delta
      if is_number(max), do: bounded(delta, &Nx.greater/2, max), else: delta
    end

    defp bounded(delta, beyond, limit) do
      limit = Coefficients.in_type(limit, delta)
      Nx.select(beyond.(delta, limit), limit, delta)
    end

    # {decay, input} {batch, seq, dim, state} of every frame.
    defp pairs(given, delta, options) do
      {batch, seq, dim} = Nx.shape(given.x)
      {_, state} = Nx.shape(given.a)
      a = given.a |> Nx.new_axis(0) |> Nx.new_axis(0)
      [x, delta] = for real <- [given.x, delta], do: real |> Nx.new_axis(3) |> lift(Nx.type(a))
      {decay, gain} = Coefficients.of(options.method, options.coefficients, delta, a)
      input = given.b |> spread(dim) |> Nx.multiply(x) |> Nx.multiply(gain)
      shape = {batch, seq, dim, state}
      {Nx.broadcast(decay, shape), Nx.broadcast(input, shape)}
    end

    # b or c as {batch, seq, dim, state}, or with axes of 1 that broadcast to it.
    defp spread(tensor, dim) do
      case Nx.shape(tensor) do
        {_dim, _state} ->
          tensor |> Nx.new_axis(0) |> Nx.new_axis(0)

        {_batch, _seq, _state} ->
          Nx.new_axis(tensor, 2)

        {batch, seq, groups, state} ->
          channels = {batch, seq, groups, div(dim, groups), state}
          tensor |> Nx.new_axis(3) |> Nx.broadcast(channels) |> Nx.reshape({batch, seq, dim, state})
      end
    end

    # A real number among complex ones. The gradient of a real number is real, which Nx does not see to.
    defp lift(real, {:c, _} = type), do: custom_grad(Nx.as_type(real, type), [real], &[Nx.real(&1)])
    defp lift(real, _type), do: real

    # A frame that does not count changes nothing,
    defp counted(pairs, nil), do: pairs

    defp counted({decay, input}, packing) do
      counts = packing.counts |> over_states() |> Nx.broadcast(Nx.shape(decay))
      {Nx.select(counts, decay, 1.0), Nx.select(counts, input, 0.0)}
    end

    # and one that begins a sequence forgets.
    defp fresh(nil, _direction), do: nil
    defp fresh(packing, direction), do: over_states(packing[direction])

    defp over_states(mask), do: mask |> Nx.new_axis(2) |> Nx.new_axis(3)

    defp states(options, {decay, input}, fresh, initial),
      do: Scans.states(algorithm(options), decay, begin(decay, input, initial), fresh)

    defp algorithm(options), do: options.algorithm || :blelloch

    # The state before the first frame comes in with it.
    defp begin(_decay, input, nil), do: input

    defp begin(decay, input, initial) do
      first = fn tensor -> Nx.slice_along_axis(tensor, 0, 1, axis: 1) end
      begun = decay |> first.() |> Nx.multiply(Nx.new_axis(initial, 1)) |> Nx.add(first.(input))

      case Nx.axis_size(input, 1) do
        1 -> begun
        seq -> Nx.concatenate([begun, Nx.slice_along_axis(input, 1, seq - 1, axis: 1)], axis: 1)
      end
    end

    # The mean of the scans from both ends, where that is asked for.
    defp weighed_states(forward, packing, {decay, input}, options) do
      if options.bidirectional do
        fresh = fresh(packing, :backward)
        backward = options |> states({flip(decay), flip(input)}, fresh && flip(fresh), nil) |> flip()
        forward |> Nx.add(backward) |> Nx.multiply(0.5)
      else
        forward
      end
    end

    # Σ C h; where states are complex, those conjugate to them are left out, and counted here.
    defp read(given, states) do
      product = given.c |> spread(Nx.axis_size(given.x, 2)) |> Nx.multiply(states)

      case Nx.type(product) do
        {:c, _} -> product |> Nx.sum(axes: [3]) |> Nx.real() |> Nx.multiply(2.0)
        _real -> Nx.sum(product, axes: [3])
      end
    end

    defp skip(%{d: d, x: x}, sum), do: Nx.add(sum, Nx.multiply(d, x))
    defp skip(_without, sum), do: sum

    defp gate(y, nil), do: y
    defp gate(y, z), do: y |> Nx.multiply(z) |> Nx.multiply(sigmoid(z))

    # 1/(1 + e⁻ᶻ), or eᶻ/(1 + eᶻ) where z is negative: no exponential is above 1. The gradient of Nx.sigmoid/1 is none where e⁻ᶻ
    # is infinite, and Nx's own backend raises where f64 has no such number.
    defp sigmoid(z) do
      small = z |> Nx.abs() |> Nx.negate() |> Nx.exp()
      z |> Nx.greater_equal(0.0) |> Nx.select(1.0, small) |> Nx.divide(Nx.add(small, 1.0))
    end

    defp only(y, nil), do: y

    defp only(y, packing) do
      Nx.select(packing.counts |> Nx.new_axis(2) |> Nx.broadcast(Nx.shape(y)), y, 0.0)
    end

    defp last(states) do
      states |> Nx.slice_along_axis(Nx.axis_size(states, 1) - 1, 1, axis: 1) |> Nx.squeeze(axes: [1])
    end

    defp flip(tensor), do: Nx.reverse(tensor, axes: [1])
  end
end
