defmodule ExPhil.Native.SelectiveScan.BackwardTest do
  # What holds for gradients whatever their numbers are; the numbers themselves are in the golden cases.
  use ExUnit.Case, async: true

  import ExPhil.Native.Scans
  alias ExPhil.Native.{SelectiveScan, Tensor}

  @optional [:d, :z, :dt_bias, :initial_state]

  defp with_output_gradients(inputs, seed \\ 1) do
    :rand.seed(:exsss, {3, 4, seed})
    {batch, seq, dim} = inputs.x.shape
    state = Tuple.insert_at(inputs.a.shape, 0, batch)
    type = inputs.x.type
    Map.merge(inputs, %{dy: normal({batch, seq, dim}, type), dfinal_state: normal(state, inputs.a.type)})
  end

  defp given(inputs), do: [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]
  defp all(inputs), do: [dt_softplus: true] ++ Keyword.new(Map.take(inputs, [:seq_idx | @optional]))

  defp backward(inputs, opts), do: apply(SelectiveScan, :backward, [inputs.dy | given(inputs)] ++ [opts])
  defp scan(inputs, opts), do: apply(SelectiveScan, :scan_for_backward, given(inputs) ++ [opts])

  defp assert_close(got, wanted, tolerance) do
    assert Map.keys(got) == Map.keys(wanted)
    for {name, tensor} <- got, do: assert({name, distance(tensor, wanted[name])} < {name, tolerance})
  end

  defp complex(inputs) do
    {batch, seq, dim} = inputs.x.shape
    {_, state} = inputs.a.shape
    own = inputs.a.type

    with_output_gradients(%{
      inputs
      | a: complex_rates({dim, state}, own),
        b: normal({batch, seq, state, 2}, inputs.x.type),
        c: normal({dim, state, 2}, inputs.x.type),
        initial_state: normal({batch, dim, state, 2}, own)
    })
  end

  test "there is a gradient of everything that was given, of its shape and type" do
    for type <- [{:f, 32}, {:f, 64}, {:bf, 16}, {:f, 16}],
        inputs = with_output_gradients(random(type: type)),
        inputs <- [inputs, complex(inputs), %{inputs | b: normal({2, 7, 3, 4}, type), c: normal({6, 4}, type)}] do
      opts = [dfinal_state: inputs.dfinal_state] ++ all(inputs)
      of_all = backward(inputs, opts)
      assert Map.keys(of_all) == Enum.sort([:x, :dt, :a, :b, :c | @optional])

      for {name, gradient} <- of_all do
        assert {name, gradient.type, gradient.shape} == {name, inputs[name].type, inputs[name].shape}
        assert Enum.all?(Tensor.to_list(gradient) |> List.flatten(), &is_float/1)
      end

      assert Map.keys(backward(inputs, [])) == [:a, :b, :c, :dt, :x]
    end
  end

  test "the gradients are slopes of the scan, for every method, in both modes and both directions" do
    inputs = with_output_gradients(random(type: {:f, 64}, batch: 1, seq: 5, dim: 2, state: 2))

    for {method, coefficients} <- methods(), bidirectional <- [false, true], reverse <- [false, true] do
      opts = [method: method, coefficients: coefficients, bidirectional: bidirectional, reverse: reverse]
      opts = opts ++ all(inputs)
      gradients = backward(inputs, [dfinal_state: inputs.dfinal_state] ++ opts)

      for name <- [:x, :dt, :a, :b, :c | @optional] do
        # Along one direction in the space of the input.
        direction = normal(inputs[name].shape, {:f, 64})
        step = 1.0e-6
        [above, below] = for sign <- [1, -1], do: loss(inputs, name, direction, sign * step, opts)
        slope = (above - below) / (2 * step)
        wanted = dot(gradients[name], direction)
        assert_in_delta slope, wanted, 1.0e-6 * (1 + abs(wanted)), inspect({name, opts[:method], opts[:reverse]})
      end
    end
  end

  defp loss(inputs, name, direction, step, opts) do
    moved = zip(inputs[name], direction, fn value, slope -> value + step * slope end)
    inputs = Map.put(inputs, name, moved)
    opts = if name in @optional, do: Keyword.put(opts, name, moved), else: opts
    {y, state, _} = scan(inputs, opts)
    dot(y, inputs.dy) + dot(state, inputs.dfinal_state)
  end

  test "a constant b is one that is the same in every frame" do
    inputs = with_output_gradients(random(batch: 1, dim: 4, state: 3))
    constant = normal({4, 3}, {:f, 32})
    # With as many groups as channels, b of a channel is its own.
    repeated = Tensor.from_binary(:binary.copy(constant.data, 7), {:f, 32}, {1, 7, 4, 3})
    of_constant = backward(%{inputs | b: constant}, [])
    of_repeated = backward(%{inputs | b: repeated}, [])

    assert_close(Map.delete(of_constant, :b), Map.delete(of_repeated, :b), 1.0e-5)
    sum = Enum.reduce(frames(of_repeated.b), fn frame, sum -> zip(frame, sum, &(&1 + &2)) end)
    assert distance(of_constant.b, %{sum | shape: {4, 3}}) < 1.0e-5
  end

  describe "boundary states" do
    test "handed over, they make no difference" do
      # More than two chunks, in two directions.
      for sizes <- [
            [seq: 7],
            [seq: 300, dim: 40, batch: 1],
            [seq: 300, type: {:f, 64}],
            [seq: 300, type: {:bf, 16}]
          ],
          method <- [:zoh, :poly],
          inputs = with_output_gradients(random(sizes)),
          inputs <- [inputs, complex(inputs)] do
        opts = [method: method, backend: :cpu] ++ all(inputs)
        {y, state, boundary_states} = scan(inputs, opts)
        assert {y, state} == apply(SelectiveScan, :scan_with_state, given(inputs) ++ [opts])
        assert boundary_states.type == inputs.a.type
        [directions, batch, _chunks | rest] = Tuple.to_list(boundary_states.shape)
        assert directions == if(method == :poly, do: 2, else: 1)
        assert [batch | rest] == Tuple.to_list(state.shape)

        opts = [dfinal_state: inputs.dfinal_state] ++ opts
        assert_close(backward(inputs, [boundary_states: boundary_states] ++ opts), backward(inputs, opts), 1.0e-6)
        assert backward(inputs, [boundary_states: nil] ++ opts) == backward(inputs, opts)
      end
    end

    @tag :cuda
    test "a CUDA device has none, and does without them" do
      inputs = with_output_gradients(random(seq: 300))
      {_, _, nil} = scan(inputs, backend: :cuda)
      {_, _, boundary_states} = scan(inputs, backend: :cpu)
      alone = backward(inputs, backend: :cuda)
      assert backward(inputs, backend: :cuda, boundary_states: boundary_states) == alone
      assert_close(alone, backward(inputs, backend: :cpu), 1.0e-5)
    end
  end

  test "the same call gives the same bits" do
    for sizes <- [[], [seq: 300, dim: 70], [batch: 9, seq: 40, dim: 33, state: 16]],
        method <- [:zoh, :poly, :highorder] do
      inputs = with_output_gradients(random(sizes))
      opts = [method: method, dfinal_state: inputs.dfinal_state] ++ all(inputs)
      wanted = backward(inputs, opts)
      for _ <- 1..5, do: assert(backward(inputs, opts) == wanted)
    end
  end

  test "reverse is the scan of the frames turned round" do
    inputs = with_output_gradients(random(seq: 9))
    turned = Map.merge(inputs, Map.new([:x, :dt, :b, :c, :z, :dy], &{&1, turn(inputs[&1])}))

    for method <- [:zoh, :highorder, :poly] do
      opts = [method: method, dfinal_state: inputs.dfinal_state]
      {y, state, _} = scan(turned, [method: method] ++ all(turned))
      {wanted, wanted_state, _} = scan(inputs, [method: method, reverse: true] ++ all(inputs))
      assert distance(turn(y), wanted) < 2.0e-6
      assert distance(state, wanted_state) < 2.0e-6

      got = backward(turned, opts ++ all(turned))
      got = Map.merge(got, Map.new([:x, :dt, :b, :c, :z], &{&1, turn(got[&1])}))
      assert_close(got, backward(inputs, [reverse: true] ++ opts ++ all(inputs)), 1.0e-5)
    end
  end

  test "a packed row is its sequences apart, forward and backward" do
    lengths = [5, 1, 9, 4]
    inputs = with_output_gradients(random(batch: 1, seq: Enum.sum(lengths), dim: 6, state: 4))
    seq_idx = for {length, index} <- Enum.with_index(lengths), _ <- 1..length, do: index
    inputs = Map.put(inputs, :seq_idx, Tensor.from_list([seq_idx], :s32))

    for method <- [:zoh, :bilinear, :poly], reverse <- [false, true] do
      opts = [method: method, reverse: reverse]
      # The state before the row is that of the sequence that the scan begins with; the others begin at zero.
      of_row = opts ++ Keyword.delete(all(inputs), :initial_state)
      {y, _state, _} = scan(inputs, of_row)
      gradients = backward(inputs, of_row)

      parts =
        for {length, index} <- Enum.with_index(lengths) do
          from = lengths |> Enum.take(index) |> Enum.sum()
          part = Map.merge(inputs, Map.new([:x, :dt, :b, :c, :z, :dy], &{&1, cut(inputs[&1], from, length)}))
          part_opts = opts ++ Keyword.drop(all(part), [:initial_state, :seq_idx])
          {part_y, _, _} = scan(part, part_opts)
          assert distance(cut(y, from, length), part_y) < 2.0e-6
          part_gradients = backward(part, part_opts)

          for name <- [:x, :dt, :b, :c, :z] do
            assert {name, distance(cut(gradients[name], from, length), part_gradients[name])} < {name, 1.0e-5}
          end

          part_gradients
        end

      for name <- [:a, :d, :dt_bias] do
        sum = parts |> Enum.map(& &1[name]) |> Enum.reduce(fn part, sum -> zip(part, sum, &(&1 + &2)) end)
        assert {name, distance(gradients[name], sum)} < {name, 1.0e-5}
      end
    end
  end

  test "a frame of padding has no gradients" do
    inputs = with_output_gradients(random(batch: 1, seq: 4))
    inputs = Map.put(inputs, :seq_idx, Tensor.from_list([[0, 0, -1, 1]], :s32))
    gradients = backward(inputs, all(inputs))

    for name <- [:x, :dt, :b, :c, :z] do
      assert gradients[name] |> frame(2) |> Tensor.to_list() |> List.flatten() |> Enum.all?(&(&1 == 0))
    end
  end

  test "a sequence cut in two, with the gradient of the state handed back, is the whole" do
    inputs = with_output_gradients(random(batch: 1, seq: 8))
    opts = &([dt_softplus: true] ++ Keyword.new(Map.take(&1, [:d, :z, :dt_bias])))
    whole = [initial_state: inputs.initial_state, dfinal_state: inputs.dfinal_state] ++ opts.(inputs)

    [first, second] =
      for from <- [0, 4],
          do: Map.merge(inputs, Map.new([:x, :dt, :b, :c, :z, :dy], &{&1, cut(inputs[&1], from, 4)}))

    {_, between, _} = scan(first, [initial_state: inputs.initial_state] ++ opts.(first))
    later = backward(second, [initial_state: between, dfinal_state: inputs.dfinal_state] ++ opts.(second))

    earlier =
      backward(first, [initial_state: inputs.initial_state, dfinal_state: later.initial_state] ++ opts.(first))

    wanted = backward(inputs, whole)
    assert distance(earlier.initial_state, wanted.initial_state) < 1.0e-5

    for name <- [:x, :dt, :b, :c, :z], {part, from} <- [{earlier, 0}, {later, 4}] do
      assert {name, distance(part[name], cut(wanted[name], from, 4))} < {name, 1.0e-5}
    end

    for name <- [:a, :d, :dt_bias] do
      assert {name, distance(zip(earlier[name], later[name], &(&1 + &2)), wanted[name])} < {name, 1.0e-5}
    end
  end
end
