defmodule ExPhil.Native.SelectiveScan.BadInputTest do
  # Every kind of call that is wrong: it says which argument, what was expected and what came.
  use ExUnit.Case, async: true

  import ExPhil.Native.Scans
  alias ExPhil.Native.{SelectiveScan, Tensor}

  defp refused(changes, opts \\ []) do
    inputs = Map.merge(random([]), Map.new(changes))
    call = fn -> SelectiveScan.scan(inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, opts) end
    assert_raise(ArgumentError, call).message
  end

  defp refused_step(changes, opts \\ []) do
    inputs = Map.merge(random(batch: 2, dim: 6, state: 4), Map.new(changes))

    [x, dt, b, c] =
      for name <- [:x, :dt, :b, :c], do: if(changes[name], do: inputs[name], else: frame(inputs[name], 0))

    state = Keyword.get(changes, :state, inputs.initial_state)
    assert_raise(ArgumentError, fn -> SelectiveScan.step(state, x, dt, inputs.a, b, c, opts) end).message
  end

  # Everywhere in the same words.
  defp refused_backward(changes, opts \\ []) do
    inputs = random([])
    inputs = Map.merge(Map.put(inputs, :dy, inputs.z), Map.new(changes))
    message = assert_raise(ArgumentError, fn -> backward(inputs, opts) end).message
    refused_by_nx(inputs, opts, message)
    message
  end

  defp backward(inputs, opts) do
    SelectiveScan.backward(inputs.dy, inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, opts)
  end

  if Code.ensure_loaded?(Nx) do
    # On the backend, and in a defn: with all tensors as its arguments, and with one of what flows in.
    defp refused_by_nx(inputs, opts, message) do
      if Keyword.keyword?(opts) do
        assert {:nx, refused_in(fn -> backward(inputs, Keyword.put_new(opts, :backend, :nx)) end)} ==
                 {:nx, message}
      end

      arguments =
        for {name, %Tensor{} = tensor} <- inputs, whole?(tensor), into: %{}, do: {name, Tensor.to_nx(tensor)}

      for names <- [Map.keys(arguments), [:dy]], given = Map.take(arguments, names), given != %{} do
        in_defn = fn -> Nx.Defn.jit(fn given -> backward(Map.merge(inputs, given), opts) end).(given) end
        assert {names, refused_in(in_defn)} == {names, message}
      end

      with dfinal_state when dfinal_state != nil <- Keyword.keyword?(opts) && opts[:dfinal_state],
           true <- is_struct(dfinal_state) and whole?(dfinal_state) do
        in_defn = fn -> Nx.Defn.jit(&backward(inputs, Keyword.put(opts, :dfinal_state, &1))) end
        given = Tensor.to_nx(dfinal_state)
        assert {:dfinal_state, refused_in(fn -> in_defn.().(given) end)} == {:dfinal_state, message}
      end
    end

    defp refused_in(call), do: assert_raise(ArgumentError, call).message

    # Others cannot become tensors of Nx.
    defp whole?(tensor),
      do: byte_size(tensor.data) == Tensor.Numbers.bytes(tensor.type) * Tuple.product(tensor.shape)
  else
    defp refused_by_nx(_inputs, _opts, _message), do: :ok
  end

  test "what is no tensor" do
    for name <- [:x, :dt, :a, :b, :c], value <- [nil, 1.0, "binary", [1.0], %{}, {1}, :x] do
      assert refused([{name, value}]) ==
               "expected #{name} to be an ExPhil.Native.Tensor or an Nx.Tensor, got: #{inspect(value)}"
    end

    for name <- [:d, :z, :dt_bias, :initial_state, :seq_idx] do
      assert refused([], [{name, 1.0}]) =~ "expected #{name} to be an ExPhil.Native.Tensor"
    end

    assert refused_step(state: nil) =~ "expected state to be an ExPhil.Native.Tensor"
  end

  test "ranks" do
    assert refused(x: Tensor.zeros({2, 7})) == "expected x to have shape {batch, seq, dim}, got: {2, 7}"
    assert refused(dt: Tensor.zeros({2, 7, 6, 1})) == "expected dt to have shape {2, 7, 6}, got: {2, 7, 6, 1}"
    assert refused(a: Tensor.zeros({6})) =~ "expected a to have shape {6, state}"
    assert refused(b: Tensor.zeros({4})) =~ "expected b to have shape {2, 7, 4}"
    assert refused([], d: Tensor.zeros({6, 1})) == "expected d to have shape {6}, got: {6, 1}"
    assert refused_step(x: Tensor.zeros({2, 7, 6})) == "expected x to have shape {batch, dim}, got: {2, 7, 6}"
  end

  test "shapes" do
    assert refused(dt: Tensor.zeros({2, 8, 6})) == "expected dt to have shape {2, 7, 6}, got: {2, 8, 6}"
    assert refused(a: Tensor.zeros({5, 4})) =~ "expected a to have shape {6, state}"
    assert refused(c: Tensor.zeros({2, 7, 5})) =~ "got: {2, 7, 5}"
    assert refused(b: Tensor.zeros({2, 7, 4, 4})) =~ "groups a divisor of dim 6"
    assert refused([], z: Tensor.zeros({2, 7, 5})) =~ "expected z to have shape {2, 7, 6}"
    assert refused([], dt_bias: Tensor.zeros({5})) =~ "expected dt_bias to have shape {6}"
    assert refused([], initial_state: Tensor.zeros({2, 6, 5})) =~ "expected initial_state to have shape {2, 6, 4}"
    assert refused([], seq_idx: Tensor.zeros({2, 8}, :s32)) =~ "expected seq_idx to have shape {2, 7}"
    assert refused_step(state: Tensor.zeros({2, 6, 5})) == "expected state to have shape {2, 6, 4}, got: {2, 6, 5}"
  end

  test "empty axes" do
    assert refused(x: Tensor.zeros({2, 0, 6})) == "expected x to have no empty axis, got: {2, 0, 6}"
    assert refused(a: Tensor.zeros({6, 0})) == "expected a to have no empty axis, got: {6, 0}"
    assert refused([], d: Tensor.zeros({0})) == "expected d to have no empty axis, got: {0}"
  end

  test "types" do
    assert refused(x: Tensor.zeros({2, 7, 6}, :s32)) == "expected x to have type f32, bf16, f16 or f64, got: s32"
    assert refused(x: Tensor.zeros({2, 7, 6}, :u8)) == "expected x to have type f32, bf16, f16 or f64, got: u8"

    assert refused(dt: Tensor.zeros({2, 7, 6}, :f64)) ==
             "expected dt to have type f32 where x has type f32, got: f64"

    assert refused(a: Tensor.zeros({6, 4}, :f64)) =~ "expected a to have type f32"
    assert refused([], seq_idx: Tensor.zeros({2, 7}, :s64)) == "expected seq_idx to have type s32, got: s64"
    assert refused_step(state: Tensor.zeros({2, 6, 4}, :bf16)) =~ "expected state to have type f32"
  end

  test "lengths, checked again where the memory is read" do
    for name <- [:x, :dt, :a, :b, :c] do
      tensor = random([])[name]
      short = %{tensor | data: binary_part(tensor.data, 0, byte_size(tensor.data) - 1)}
      size = byte_size(tensor.data)
      assert refused([{name, short}]) == "expected #{name} to hold #{size} bytes, got: #{size - 1} bytes"

      for backend <- [:cpu, :nx] do
        longer = %{tensor | data: tensor.data <> <<0>>}
        assert refused([{name, longer}], backend: backend) =~ "expected #{name} to hold #{size} bytes"
      end
    end

    assert refused([], d: %{random([]).d | data: <<>>}) == "expected d to hold 24 bytes, got: 0 bytes"
  end

  test "lengths, before memory is made for results" do
    a = random([]).a
    huge = %{random([]).x | shape: {2, 1 <<< 40, 6}, data: <<>>}
    changes = [x: huge, dt: huge, b: a, c: a]
    message = "expected x to hold #{48 * (1 <<< 40)} bytes, got: 0 bytes"
    assert refused(changes) == message
    inputs = Map.merge(random([]), Map.new([dy: huge] ++ changes))
    assert_raise ArgumentError, message, fn -> backward(inputs, []) end
  end

  test "structs with forged fields" do
    x = random([]).x

    for {field, values} <- [
          data: [nil, 1, [0], %{}, <<1::3>>],
          shape: [nil, [2, 7, 6], {2, 7, -6}, {2, 7, 6.0}, {:a}, {1.0e300}, {2, 7, 1 <<< 80}, {}, 3],
          type: [nil, :f32, {:f, 8}, {:f, -32}, {"f", 32}, {:f, 1 <<< 70}, {:c, 64}, {:f}]
        ],
        value <- values do
      assert refused(x: Map.put(x, field, value)) =~ "expected x to "
    end

    assert refused(x: Map.delete(x, :data)) =~ "expected x to be"
    # Of what may be of any size, the kind is shown.
    for {field, value, kind} <- [
          {:shape, Enum.to_list(1..100_000), "List"},
          {:shape, {2, [7 | 6], 1 <<< 100}, "Tuple"},
          {:data, Map.new(1..100, &{&1, &1}), "Map"},
          {:type, String.duplicate("f", 1000), "Binary"}
        ] do
      assert refused(x: Map.put(x, field, value)) =~ "got: a term of type #{kind}"
    end

    assert refused(x: %{x | shape: [2, 7]}) =~ "got: [2,7]"
    huge = 1 <<< 31
    assert refused(x: %{x | shape: {huge, huge, huge}}, dt: %{x | shape: {huge, huge, huge}}) =~ "expected "
  end

  test "structs with forged fields in a backward pass, whether its backend can run or not" do
    %{x: x, initial_state: state} = inputs = random([])
    boundary_states = Tensor.zeros({1, 2, 1, 6, 4})

    for backend <- [:cpu, :nx, {:cuda, 99}],
        {field, values} <- [type: [nil, :f32, {:f, 8}, {"f", 32}], shape: [nil, [2]], data: [nil]],
        value <- values do
      forged = &Map.put(&1, field, value)

      for {name, changes, opts} <- [
            {:x, [x: forged.(x)], []},
            {:dy, [dy: forged.(x)], []},
            {:dfinal_state, [], [dfinal_state: forged.(state)]},
            {:boundary_states, [], [boundary_states: forged.(boundary_states)]}
          ] do
        given = inputs |> Map.put(:dy, x) |> Map.merge(Map.new(changes))
        error = assert_raise ArgumentError, fn -> backward(given, [{:backend, backend} | opts]) end
        assert error.message =~ "expected #{name} to have "
      end
    end
  end

  test "options that are not a keyword list" do
    for opts <- [:method, %{method: :zoh}, [:zoh], [{"method", :zoh}], nil, [{:method, :zoh} | :rest]] do
      assert refused([], opts) == "expected options to be a keyword list, got: #{inspect(opts)}"
    end
  end

  test "options that are unknown" do
    assert refused([], metod: :zoh) =~ ~r/options to be among .*:method, .*got: :metod/
    assert refused_step([], initial_state: random([]).initial_state) =~ "got: :initial_state"
    refute refused_step([], metod: :zoh) =~ "initial_state"
  end

  test "values of options" do
    methods = ":zoh, :zoh_exact, :foh, :bilinear, :poly, :highorder, :rk4"
    assert refused([], method: :zho) == "expected method to be one of #{methods}, got: :zho"
    assert refused([], method: "zoh") == ~s(expected method to be one of #{methods}, got: "zoh")
    assert refused([], method: nil) == "expected method to be one of #{methods}, got: nil"
    assert refused([], coefficients: :series) =~ "expected coefficients to be one of :exact, :taylor"
    assert refused([], method: :zoh, coefficients: :taylor) =~ "expected coefficients to be :exact"
    assert refused([], bidirectional: :yes) == "expected bidirectional to be a boolean or nil, got: :yes"
    assert refused([], reverse: 1) == "expected reverse to be a boolean, got: 1"
    assert refused([], dt_softplus: nil) == "expected dt_softplus to be a boolean, got: nil"
    assert refused([], backend: :gpu) =~ "expected backend to be one of :auto, :cuda, {:cuda, ordinal}, :cpu, :nx"
    assert refused([], backend: {:cuda, -1}) =~ "got: {:cuda, -1}"
  end

  test "limits of dt" do
    beyond = [{1 <<< 2000, 0}, {0, 1 <<< 63}, {-(1 <<< 63) - 1, 0}]

    for limit <- [0.1, {0.1}, {"0", 1}, [0, 1], {0, nil}, {:nan, 1}, {0, 1, 2} | beyond] do
      assert refused([], dt_limit: limit) ==
               "expected dt_limit to be {min, max}, two numbers, integers within 64 bits, got: #{inspect(limit)}"
    end

    for limit <- [
          {:infinity, :infinity},
          {:neg_infinity, :neg_infinity},
          {:infinity, :neg_infinity},
          {:infinity, 1.0},
          {0, :neg_infinity}
        ],
        call <- [&refused/2, &refused_backward/2, &refused_step/2] do
      assert call.([], dt_limit: limit) ==
               "expected dt_limit to be {min, max} with min below :infinity and max above :neg_infinity, " <>
                 "got: #{inspect(limit)}"
    end

    assert refused([], dt_limit: {1, 0}) ==
             "expected dt_limit to be {min, max} with min not above max, got: {1, 0}"

    # Numbers of f64, but f32 has none of them.
    assert refused([], dt_limit: {1.0e300, 1.0e301}) =~
             "max above :neg_infinity, in the type of the scan, got: {1.0e300, 1.0e301}"

    assert refused([], dt_limit: {1.0e300, :infinity}) =~ "in the type of the scan, got: {1.0e300, :infinity}"
    assert refused_backward([], dt_limit: {-1.0e301, -1.0e300}) =~ "in the type of the scan"
    assert refused_step([], dt_limit: {1.0e300, :infinity}) =~ "in the type of the scan, got: {1.0e300, :infinity}"
  end

  test "steps that are not causal" do
    assert refused_step([], reverse: true) =~ "expected reverse to be false in a step"
    assert refused_step([], bidirectional: true) =~ "expected bidirectional to be false in a step"
    assert refused_step([], method: :poly) =~ "expected method to be causal in a step"
    assert refused_step([], seq_idx: Tensor.zeros({2, 1}, :s32)) =~ "expected seq_idx to be absent in a step"
  end

  test "x is real, and b and c are as complex as a" do
    complex = %{
      a: Tensor.zeros({6, 4, 2}),
      b: Tensor.zeros({2, 7, 4, 2}),
      c: Tensor.zeros({2, 7, 4, 2})
    }

    for call <- [&refused/1, &refused_backward/1] do
      assert call.(x: Tensor.zeros({2, 7, 6, 2})) ==
               "expected x to have shape {batch, seq, dim}, got: {2, 7, 6, 2}"

      assert call.(dt: Tensor.zeros({2, 7, 6, 2})) == "expected dt to have shape {2, 7, 6}, got: {2, 7, 6, 2}"
      assert call.(Map.delete(complex, :a)) =~ ~r/expected b to have shape .* got: \{2, 7, 4, 2\}/
      assert call.(Map.delete(complex, :b)) =~ ~r/expected b to have shape .* got: \{2, 7, 4\}/
      assert call.(Map.delete(complex, :c)) =~ ~r/expected c to have shape .* got: \{2, 7, 4\}/
    end

    assert refused(complex, initial_state: Tensor.zeros({2, 6, 4})) =~
             "expected initial_state to have shape {2, 6, 4, 2}"
  end

  test "the question which backend it takes" do
    inputs = random([])

    for {changes, opts, words} <- [
          {[a: Tensor.zeros({7, 1})], [method: :zho], "expected method to be one of :zoh, "},
          {[a: Tensor.zeros({7, 1})], [], "expected a to have shape {6, state}"},
          {[b: Tensor.zeros({9, 9, 9})], [], "expected b to have shape {2, 7, 4}"},
          {[c: nil], [], "expected c to be an ExPhil.Native.Tensor or an Nx.Tensor, got: nil"},
          {[], [z: Tensor.zeros({1})], "expected z to have shape {2, 7, 6}"},
          {[x: frame(inputs.x, 0)], [], "expected dt to have shape {2, 6}, got: {2, 7, 6}"},
          {[x: frame(inputs.x, 0)], [initial_state: inputs.initial_state], "got: :initial_state"},
          {[x: %{inputs.x | data: <<0>>}], [], "expected x to hold 336 bytes, got: 1 bytes"},
          {[x: Tensor.zeros({3})], [], "expected x to have shape {batch, seq, dim}, got: {3}"}
        ],
        backend <- [:cpu, :auto] do
      inputs = Map.merge(inputs, Map.new(changes))
      opts = [{:backend, backend} | opts]
      call = fn -> SelectiveScan.backend_for(inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, opts) end
      assert assert_raise(ArgumentError, call).message =~ words
    end
  end

  test "backward: all that a scan refuses" do
    for value <- [nil, 1.0, [1.0], :x], name <- [:x, :dt, :a, :b, :c, :dy] do
      assert refused_backward([{name, value}]) =~ "expected #{name} to be an ExPhil.Native.Tensor or an Nx.Tensor"
    end

    assert refused_backward(b: Tensor.zeros({2, 7, 5})) =~ "expected b to have shape {2, 7, 4}"
    assert refused_backward(dt: Tensor.zeros({2, 7, 6}, :f64)) =~ "expected dt to have type f32"
    assert refused_backward([], method: :zho) =~ "expected method to be one of :zoh, "
    assert refused_backward([], method: :rk4, coefficients: :taylor) =~ "expected coefficients to be :exact"
    assert refused_backward([], dt_limit: {1, 0}) =~ "expected dt_limit to be {min, max}"
    assert refused_backward([], :zoh) == "expected options to be a keyword list, got: :zoh"
    assert refused_backward([], dy: 1) =~ ~r/options to be among .*:boundary_states, .*:dfinal_state, .*got: :dy/
  end

  test "backward: what flows in" do
    assert refused_backward(dy: Tensor.zeros({2, 7, 5})) == "expected dy to have shape {2, 7, 6}, got: {2, 7, 5}"
    assert refused_backward(dy: Tensor.zeros({2, 7})) == "expected dy to have shape {2, 7, 6}, got: {2, 7}"

    assert refused_backward(dy: Tensor.zeros({2, 7, 6}, :bf16)) ==
             "expected dy to have type f32 where x has type f32, got: bf16"

    for {shape, type, words} <- [
          {{2, 6, 5}, :f32, "expected dfinal_state to have shape {2, 6, 4}, got: {2, 6, 5}"},
          {{2, 6, 4, 2}, :f32, "expected dfinal_state to have shape {2, 6, 4}, got: {2, 6, 4, 2}"},
          {{2, 6, 4}, :f64, "expected dfinal_state to have type f32 where x has type f32, got: f64"}
        ] do
      assert refused_backward([], dfinal_state: Tensor.zeros(shape, type)) == words
    end

    assert refused_backward([], dfinal_state: 0.0) =~ "expected dfinal_state to be an ExPhil.Native.Tensor"
    short = %{Tensor.zeros({2, 7, 6}) | data: <<0>>}
    assert refused_backward(dy: short) == "expected dy to hold 336 bytes, got: 1 bytes"
    short = %{Tensor.zeros({2, 6, 4}) | data: <<>>}
    assert refused_backward([], dfinal_state: short) == "expected dfinal_state to hold 192 bytes, got: 0 bytes"
  end

  test "backward: boundary states of another call" do
    inputs = random([])

    {_, _, states} =
      SelectiveScan.scan_for_backward(inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, backend: :cpu)

    of_poly = refused_backward([], method: :poly, boundary_states: states)
    assert of_poly == "expected boundary_states to have shape {2, 2, 1, 6, 4}, got: {1, 2, 1, 6, 4}"
    other_type = Tensor.zeros(states.shape, :f64)
    assert refused_backward([], boundary_states: other_type) =~ "expected boundary_states to have type f32"
    short = %{states | data: <<>>}

    assert refused_backward([], boundary_states: short, backend: :cpu) =~
             "expected boundary_states to hold 192 bytes"

    assert refused_backward([], boundary_states: true) =~ "expected boundary_states to be an ExPhil.Native.Tensor"
    assert refused([], boundary_states: states) =~ "got: :boundary_states"
    assert refused([], dfinal_state: inputs.initial_state) =~ "got: :dfinal_state"
    assert refused_step([], dfinal_state: inputs.initial_state) =~ "got: :dfinal_state"
  end

  # Which finds them again itself.
  @tag :cuda
  test "backward: boundary states of another length, where they are not needed" do
    short = %{Tensor.zeros({1, 2, 1, 6, 4}) | data: <<>>}

    assert refused_backward([], boundary_states: short, backend: :cuda) =~
             "expected boundary_states to hold 192 bytes"
  end

  test "what is only half a tensor" do
    half = Map.delete(Tensor.zeros({2, 7, 6}), :shape)
    for name <- [:x, :dt, :a, :b, :c], do: assert(refused([{name, half}]) =~ "expected #{name} to be an ExPhil")
    assert refused([], d: half) =~ "expected d to be an ExPhil"
  end

  defp 1 <<< bits, do: Bitwise.bsl(1, bits)
end
