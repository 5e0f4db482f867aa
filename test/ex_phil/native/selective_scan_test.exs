defmodule ExPhil.Native.SelectiveScanTest do
  use ExUnit.Case, async: true
  doctest ExPhil.Native.SelectiveScan

  import ExPhil.Native.Scans
  alias ExPhil.Native.{SelectiveScan, Tensor}

  @optional [:d, :z, :dt_bias, :initial_state]

  defp call(function, inputs, opts \\ []) do
    apply(SelectiveScan, function, [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, opts])
  end

  defp with_all(inputs, opts \\ []), do: opts ++ [dt_softplus: true] ++ Keyword.new(Map.take(inputs, @optional))

  test "the native library is there" do
    assert SelectiveScan.available?()
  end

  test "results have the shapes and types that the inputs give them" do
    for type <- [{:f, 32}, {:f, 64}, {:bf, 16}, {:f, 16}] do
      inputs = random(type: type)
      {y, state} = call(:scan_with_state, inputs)
      assert {Tensor.type(y), Tensor.shape(y)} == {type, {2, 7, 6}}
      assert {Tensor.type(state), Tensor.shape(state)} == {inputs.a.type, {2, 6, 4}}
      assert call(:scan, inputs) == y
    end
  end

  test "a complex a has complex states" do
    inputs = random([])

    complex = %{
      inputs
      | a: normal({6, 4, 2}, {:f, 32}),
        b: normal({2, 7, 4, 2}, {:f, 32}),
        c: normal({6, 4, 2}, {:f, 32})
    }

    {y, state} = call(:scan_with_state, complex)
    assert {Tensor.shape(y), Tensor.shape(state)} == {{2, 7, 6}, {2, 6, 4, 2}}
  end

  test "steps one after the other are the scan" do
    for type <- [{:f, 32}, {:f, 64}] do
      inputs = random(type: type, seq: 9, dim: 40, state: 16)
      {y, last} = call(:scan_with_state, inputs, with_all(inputs))

      {state, worst} =
        Enum.reduce(0..8, {inputs.initial_state, 0.0}, fn index, {state, worst} ->
          opts = [z: frame(inputs.z, index), d: inputs.d, dt_bias: inputs.dt_bias, dt_softplus: true]
          [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: frame(inputs[name], index)
          {out, state} = SelectiveScan.step(state, x, dt, inputs.a, b, c, opts)
          {state, max(worst, distance(out, frame(y, index)))}
        end)

      assert worst < 2.0e-6
      assert distance(state, last) < 2.0e-6
    end
  end

  test "steps are the causal scan for every method, layout and type" do
    for {method, coefficients} <- methods(),
        type <- [{:f, 32}, {:f, 64}, {:bf, 16}, {:f, 16}],
        inputs = random(type: type, seq: 5),
        inputs <- [
          inputs,
          %{inputs | b: normal({2, 5, 3, 4}, type), c: normal({6, 4}, type)},
          %{
            inputs
            | a: complex_rates({6, 4}, inputs.a.type),
              b: normal({6, 4, 2}, type),
              c: normal({2, 5, 4, 2}, type),
              initial_state: normal({2, 6, 4, 2}, inputs.a.type)
          }
        ] do
      own = [method: method, coefficients: coefficients, bidirectional: false, dt_softplus: true, d: inputs.d]
      {y, last} = call(:scan_with_state, inputs, [initial_state: inputs.initial_state, z: inputs.z] ++ own)

      {frames, state} =
        Enum.map_reduce(0..4, inputs.initial_state, fn index, state ->
          of_frame = fn tensor -> if elem(tensor.shape, 0) == 2, do: frame(tensor, index), else: tensor end
          [x, dt, b, c, z] = for name <- [:x, :dt, :b, :c, :z], do: of_frame.(inputs[name])
          SelectiveScan.step(state, x, dt, inputs.a, b, c, [z: z] ++ own)
        end)

      for {frame, wanted} <- Enum.zip(frames, frames(y)) do
        assert distance(frame, wanted) < of_rounding(type), inspect({method, coefficients, type})
      end

      assert distance(state, last) < 2.0e-6
    end
  end

  defp of_rounding({:bf, 16}), do: 1 / 256
  defp of_rounding({:f, 16}), do: 1 / 2048
  defp of_rounding(_), do: 2.0e-6

  test "a sequence cut in two, with the state handed over, is the whole" do
    inputs = random(batch: 1, seq: 8)
    {y, last} = call(:scan_with_state, inputs, initial_state: inputs.initial_state)

    {halves, state} =
      Enum.map_reduce([0, 4], inputs.initial_state, fn start, state ->
        cut = fn tensor ->
          size = div(byte_size(tensor.data), 2)
          {1, 8, width} = tensor.shape
          Tensor.from_binary(binary_part(tensor.data, div(start, 4) * size, size), tensor.type, {1, 4, width})
        end

        SelectiveScan.scan_with_state(cut.(inputs.x), cut.(inputs.dt), inputs.a, cut.(inputs.b), cut.(inputs.c),
          initial_state: state
        )
      end)

    joined = Tensor.from_binary(Enum.map_join(halves, & &1.data), {:f, 32}, {1, 8, 6})
    assert distance(joined, y) < 2.0e-6
    assert distance(state, last) < 2.0e-6
  end

  test "where a binary begins in memory does not matter" do
    inputs = random([])
    wanted = call(:scan_with_state, inputs, with_all(inputs))

    for offset <- 1..7 do
      moved =
        Map.new(inputs, fn {name, tensor} ->
          larger = :binary.copy(<<0::size(offset)-unit(8), tensor.data::binary>>)
          {name, %{tensor | data: binary_part(larger, offset, byte_size(tensor.data))}}
        end)

      assert call(:scan_with_state, moved, with_all(moved)) == wanted
    end
  end

  test "dt_limit takes numbers and infinities" do
    inputs = random([])
    same = call(:scan, inputs)
    assert call(:scan, inputs, dt_limit: {0, :infinity}) == same
    assert call(:scan, inputs, dt_limit: {:neg_infinity, 1.0e30}) == same
    assert call(:scan, inputs, dt_limit: {-1.0e300, 1.0e300}) == same
    assert call(:scan, inputs, dt_limit: {-(2 ** 63), 2 ** 63 - 1}) == same
    assert call(:scan, inputs, dt_limit: nil) == same
    fixed = %{inputs | dt: Tensor.from_list(for(_ <- 1..2, do: for(_ <- 1..7, do: for(_ <- 1..6, do: 0.25))))}
    assert distance(call(:scan, inputs, dt_limit: {0.25, 0.25}), call(:scan, fixed)) < 1.0e-6
  end

  test "options that are nil are absent, and the first of two counts" do
    inputs = random([])
    assert call(:scan, inputs, d: nil, z: nil, initial_state: nil, bidirectional: nil) == call(:scan, inputs)
    assert call(:scan, inputs, reverse: true, reverse: false) == call(:scan, inputs, reverse: true)
    refute call(:scan, inputs, reverse: true) == call(:scan, inputs)
  end

  test "what is no number goes where IEEE 754 says" do
    inputs = random(batch: 1, seq: 4, dim: 2, state: 1)
    x = Tensor.from_list([[[1.0, 1.0], [:nan, 1.0], [1.0, 1.0], [1.0, :infinity]]])
    b = c = Tensor.from_list([[[1.0], [1.0], [1.0], [1.0]]])
    dt = Tensor.from_list([[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]])
    {y, state} = call(:scan_with_state, %{inputs | x: x, dt: dt, b: b, c: c})

    assert [[[first, _], [:nan, second], [:nan, third], [:nan, :infinity]]] = Tensor.to_list(y)
    assert Enum.all?([first, second, third], &is_float/1)
    assert Tensor.to_list(state) == [[[:nan], [:infinity]]]

    # e^(a * infinity) is 0 for a negative a, and infinity * 0 in the input is not a number.
    endless = Tensor.from_list([[[:infinity, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]])
    zero = Tensor.from_list([[[0.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]])
    assert [[[:nan, _] | _]] = Tensor.to_list(call(:scan, %{inputs | x: zero, dt: endless, b: b, c: c}))

    # Nor is infinity * 0 in the decay, which the state before the first frame is multiplied by, though that is zero.
    one = Tensor.from_list([[[1.0]]])

    for rate <- [:nan, :infinity] do
      inputs = %{inputs | x: one, dt: one, a: Tensor.from_list([[rate]]), b: one, c: one}
      assert {y, state} = call(:scan_with_state, inputs)
      assert {Tensor.to_list(y), Tensor.to_list(state)} == {[[[:nan]]], [[[:nan]]]}
    end
  end

  # Powers of dt leave the range of f32 long before the gains do that they are made into.
  for backend <- [:cpu, :cuda] do
    if backend == :cuda, do: @tag(:cuda)

    test "time may be counted in any unit (#{backend})" do
      for method <- [:zoh, :zoh_exact, :foh, :poly, :highorder, :bilinear, :rk4],
          dt <- [1.0e-9, 1.0e-4, 1.0, 1.0e4, 1.0e9],
          z <- [-3.0, -0.5, -0.01, 0.0] do
        for {got, exact} <-
              Enum.zip(one_frame(unquote(backend), :f32, method, dt, z), one_frame(:cpu, :f64, method, dt, z)) do
          assert abs(got - exact) <= 2.0e-5 * abs(exact), inspect({method, dt, z, got, exact})
        end
      end
    end
  end

  # y, da and ddt of one frame with a * dt = z.
  defp one_frame(backend, type, method, dt, z) do
    a = Tensor.from_list([[z / dt]], type)
    [x, dt] = for value <- [1.0, dt], do: Tensor.from_list([[[value]]], type)
    opts = [method: method, bidirectional: false, backend: backend]
    %{a: da, dt: ddt} = SelectiveScan.backward(x, x, dt, a, x, x, opts)
    Enum.flat_map([SelectiveScan.scan(x, dt, a, x, x, opts), da, ddt], &(&1 |> Tensor.to_list() |> List.flatten()))
  end
end
