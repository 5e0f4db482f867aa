if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.FallbackTest do
    # `backend: :nx` beside the native library: every option, layout, type and algorithm.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    alias ExPhil.Native.{SelectiveScan, Tensor}
    alias ExPhil.Native.SelectiveScan.Check

    @methods [:zoh, :zoh_exact, :foh, :bilinear, :poly, :highorder, :rk4]
    @algorithms [:blelloch, :hillis_steele, :cumsum, :sequential]

    defp args(inputs), do: [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]

    # Outputs and gradients of both, and how far they are apart at most.
    defp apart(inputs, opts) do
      [dy, dfinal_state] = for like <- [inputs.x, inputs.initial_state], do: normal(like.shape, like.type)

      results =
        for backend <- [:nx, :cpu] do
          opts = [{:backend, backend} | opts]
          {y, state} = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [opts])

          gradients =
            apply(SelectiveScan, :backward, [dy | args(inputs)] ++ [[{:dfinal_state, dfinal_state} | opts]])

          Map.merge(gradients, %{y: y, final_state: state})
        end

      [nx, native] = results
      assert Map.keys(nx) == Map.keys(native)

      for {name, wanted} <- native do
        assert Tensor.type(nx[name]) == Tensor.type(wanted)
        distance(nx[name], wanted)
      end
      |> Enum.max()
    end

    defp optional(inputs), do: Keyword.new(Map.take(inputs, [:d, :z, :dt_bias, :initial_state]))

    test "every method in every mode" do
      inputs = random(type: {:f, 64}, seq: 6)

      for method <- @methods, both_ways? <- [false, true], reverse <- [false, true] do
        opts = [method: method, bidirectional: both_ways?, reverse: reverse, dt_softplus: true] ++ optional(inputs)
        assert {method, apart(inputs, opts)} < {method, 1.0e-12}
      end
    end

    test "constants and groups in every mode" do
      for {b, c} <- [{{6, 4}, {2, 6, 3, 4}}, {{2, 6, 2, 4}, {6, 4}}],
          both_ways? <- [false, true],
          reverse <- [false, true] do
        inputs = %{random(type: {:f, 64}, seq: 6) | b: normal(b, {:f, 64}), c: normal(c, {:f, 64})}
        assert apart(inputs, [bidirectional: both_ways?, reverse: reverse] ++ optional(inputs)) < 1.0e-12
      end
    end

    test "every type, within its rounding" do
      # Nx's binary backend cuts bf16 off where others round.
      for {type, rounding} <- [{{:f, 64}, 1.0e-13}, {{:f, 32}, 3.0e-6}, {{:bf, 16}, 8.0e-3}, {{:f, 16}, 1.0e-3}] do
        inputs = random(type: type, seq: 12)
        assert {type, apart(inputs, [dt_softplus: true] ++ optional(inputs))} < {type, rounding}
      end
    end

    test "packed rows, in every mode and by every algorithm" do
      index = [[0, 0, 1, 1, 1, -1, 2, 2, -1], [-1, 3, 3, -1, 3, 4, 4, 4, 4]]
      inputs = random(type: {:f, 64}, seq: 9)

      for algorithm <- @algorithms, both_ways? <- [false, true], reverse <- [false, true] do
        opts = [bidirectional: both_ways?, reverse: reverse, seq_idx: Tensor.from_list(index, :s32)]
        assert apart(inputs, [algorithm: algorithm] ++ opts ++ optional(inputs)) < 1.0e-12
      end
    end

    test "what is in frames that do not count, be it no number, has no part in gradients" do
      inputs = random(type: {:f, 64}, batch: 1, seq: 4)
      opts = [dt_softplus: true, seq_idx: Tensor.from_list([[0, -1, 0, 1]], :s32)]

      for name <- [:x, :dt, :z, :b, :c] do
        {1, 4, width} = inputs[name].shape
        nan = List.duplicate(:nan, width)
        counts = fn {frame, at} -> if at == 1, do: nan, else: frame end
        [frames] = Tensor.to_list(inputs[name])
        given = %{inputs | name => Tensor.from_list([frames |> Enum.with_index() |> Enum.map(counts)], :f64)}
        assert {name, apart(given, opts ++ optional(given))} < {name, 1.0e-12}
      end
    end

    test "an infinite state ends with its sequence, by every algorithm, as in the native scan" do
      index = [
        [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3],
        [0, 0, 4, 4, -1, 4 | List.duplicate(5, 13)]
      ]

      # In the first sequence and in a long one; and no numbers where a frame does not count.
      special = %{{0, 1} => :infinity, {0, 9} => :infinity, {1, 3} => :infinity, {1, 4} => :nan}
      x = for row <- 0..1, do: for(at <- 0..18, do: [Map.get(special, {row, at}, 0.5), 1.0])
      x = Tensor.from_list(x, :f64)
      inputs = %{random(type: {:f, 64}, seq: 19, dim: 2) | x: x}
      dy = normal({2, 19, 2}, {:f, 64})

      for algorithm <- @algorithms, both_ways? <- [false, true], reverse <- [false, true] do
        opts = [bidirectional: both_ways?, reverse: reverse, seq_idx: Tensor.from_list(index, :s32)]

        [nx, native] =
          for backend <- [[backend: :nx, algorithm: algorithm], [backend: :cpu]] do
            {y, state} = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [backend ++ opts])
            gradients = apply(SelectiveScan, :backward, [dy | args(inputs)] ++ [backend ++ opts])
            Map.merge(gradients, %{y: y, final_state: state})
          end

        for {name, wanted} <- native do
          [got, wanted] = for tensor <- [nx[name], wanted], do: Tensor.Numbers.decode(tensor.data, {:f, 64})

          # Infinity less infinity is no number, and the order of a sum decides whether one comes up.
          for {{got, wanted}, at} <- got |> Enum.zip(wanted) |> Enum.with_index() do
            equal? =
              if is_float(wanted),
                do: is_float(got) and abs(got - wanted) <= 1.0e-12 * max(1.0, abs(wanted)),
                else: is_atom(got)

            assert equal?, inspect({name, at, got, wanted, opts, algorithm})
          end
        end
      end
    end

    test "limits of dt, and softplus beyond 20" do
      inputs = %{random(type: {:f, 64}) | dt: uniform({2, 7, 6}, {:f, 64}, -2.0, 30.0)}
      inputs = %{inputs | a: uniform({6, 4}, {:f, 64}, -0.3, -0.01)}

      for limit <- [nil, {0.5, 2.0}, {:neg_infinity, 1.0}, {0.1, :infinity}] do
        assert apart(inputs, dt_softplus: true, dt_limit: limit) < 1.0e-12
      end

      assert apart(random([]), dt_limit: {-1.0e300, 1.0e300}) < 1.0e-5
      # Beyond what f32 has an exponential of.
      inputs = %{random([]) | dt: uniform({2, 7, 6}, {:f, 32}, 90.0, 100.0)}
      inputs = %{inputs | a: uniform({6, 4}, {:f, 32}, -0.01, -0.001)}
      assert apart(inputs, dt_softplus: true) < 1.0e-5
    end

    test "lengths around the powers of two and the windows" do
      for seq <- [1, 2, 3, 4, 5, 15, 16, 17, 31, 33], algorithm <- @algorithms do
        inputs = random(type: {:f, 64}, batch: 1, seq: seq, dim: 2, state: 2)
        assert {seq, apart(inputs, algorithm: algorithm, initial_state: inputs.initial_state)} < {seq, 1.0e-12}
      end
    end

    test "steps" do
      for groups <- [[], [2]] do
        inputs = random(type: {:f, 64})
        [x, dt, z] = for name <- [:x, :dt, :z], do: frame(inputs[name], 0)
        [b, c] = for shape <- [List.to_tuple([2 | groups] ++ [4]), {6, 4}], do: normal(shape, {:f, 64})

        [nx, native] =
          for backend <- [:nx, :cpu] do
            SelectiveScan.step(inputs.initial_state, x, dt, inputs.a, b, c, z: z, d: inputs.d, backend: backend)
          end

        for {got, wanted} <- Enum.zip(Tuple.to_list(nx), Tuple.to_list(native)) do
          assert distance(got, wanted) < 1.0e-13
        end
      end
    end

    test "where the discretization is not smooth in its formula, the gradient is" do
      # a * dt is zero, near to it, and on both sides of where series and closed form meet.
      inputs = %{random(type: {:f, 64}, batch: 1, seq: 4, dim: 6, state: 1) | d: nil}
      a = Tensor.from_list(for(a <- [0.0, -1.0e-9, -0.999999, -1.000001, -2.999999, -3.000001], do: [a]), :f64)
      dt = Tensor.from_list([for(_ <- 1..4, do: for(_ <- 1..6, do: 1.0))], :f64)

      for method <- @methods do
        assert {method, apart(%{inputs | a: a, dt: dt}, method: method)} < {method, 1.0e-11}
      end
    end

    test "far from zero, the series that is not taken spoils no gradient" do
      inputs = %{random([]) | a: Tensor.from_list(List.duplicate([-5.0, -50.0, -500.0, -5000.0], 6))}
      inputs = %{inputs | dt: Tensor.from_list(List.duplicate(List.duplicate(List.duplicate(1.0, 6), 7), 2))}
      for method <- @methods, do: assert({method, apart(inputs, method: method)} < {method, 1.0e-5})
    end

    test "the series has all the terms that singles need, real and complex" do
      rates = for z <- [2.0, 2.25, 2.5, 2.75, 2.875, 2.99], do: [-z]
      pairs = for [z] <- rates, do: [[0.6 * z, 0.8 * z]]
      [x, dt] = for _ <- 1..2, do: Tensor.from_list([[List.duplicate(1.0, 6)]])

      for method <- [:zoh_exact, :foh, :poly, :highorder],
          {a, one} <- [{rates, [[[1.0]]]}, {pairs, [[[[1.0, 0.0]]]]}] do
        opts = [method: method, bidirectional: false]
        one = Tensor.from_list(one)
        got = SelectiveScan.scan(x, dt, Tensor.from_list(a), one, one, [backend: :nx] ++ opts)
        [x, dt, one] = for tensor <- [x, dt, one], do: as_type(tensor, {:f, 64})
        wanted = SelectiveScan.scan(x, dt, Tensor.from_list(a, :f64), one, one, [backend: :cpu] ++ opts)

        for {got, wanted} <- Enum.zip(for(tensor <- [got, wanted], do: List.flatten(Tensor.to_list(tensor)))) do
          assert abs(got - wanted) <= 3.0e-6 * abs(wanted)
        end
      end
    end

    test "the gradient of a gate that is all but shut, or open" do
      for type <- [:f32, :f64], z <- [-720.0, -300.0, -100.0, -89.0, -1.0, 0.0, 1.0, 100.0, 720.0] do
        [z, one] = for number <- [z, 1.0], do: Tensor.from_list([[[number]]], type)
        a = Tensor.from_list([[0.0]], type)
        gradients = &SelectiveScan.backward(one, one, one, a, one, one, z: z, backend: &1)
        [nx, native] = for backend <- [:nx, :cpu], do: gradients.(backend)

        for {got, wanted} <- [{nx.z, native.z}, {nx.x, native.x}] do
          [[[[got]]], [[[wanted]]]] = for tensor <- [got, wanted], do: Tensor.to_list(tensor)
          assert_in_delta got, wanted, 1.0e-6 * abs(wanted) + 1.0e-36
        end
      end
    end

    test "an unknown algorithm" do
      assert_raise ArgumentError, ~r/algorithm to be one of :blelloch, .*, got: :kogge/, fn ->
        apply(SelectiveScan, :scan, args(random([])) ++ [[algorithm: :kogge]])
      end
    end

    # A wrong call is told so in the words of the native library, with it and without.
    defp told_the_same!(form, tensors, options) do
      [native, here] =
        for check <- [&Check.run!/3, &Check.here!/3] do
          assert_raise(ArgumentError, fn -> check.(form, tensors, options) end).message
        end

      assert {form, native} == {form, here}
    end

    defp options(settings), do: struct!(SelectiveScan.Options, settings)

    # Of each rule that is not one of the options alone one breach or more: tensors and options of a scan or a step, where the first are `x` of 2 × 7 × 6 or
    # 2 × 6, and 4 states.
    defp faults(form) do
      zeros = &Tensor.zeros/2
      sequence = fn dim -> if form == :scan, do: {2, 7, dim}, else: {2, dim} end

      of_tensors =
        for {name, shape, types} <- [
              {:x, {2}, [:f32]},
              {:x, put_elem(sequence.(6), 0, 0), [:f32]},
              {:x, sequence.(6), [:s32, :u8, :f64]},
              {:dt, sequence.(5), [:f32]},
              {:dt, sequence.(6), [:f64, :s32, :s64]},
              {:a, {5, 4}, [:f32]},
              {:a, {6, 0}, [:f32]},
              {:a, {6, 4}, [:f64, :u8]},
              {:b, {2, 7, 4, 4}, [:f32]},
              {:b, {6, 4}, [:f16, :s8]},
              {:c, {6, 5}, [:f32, :f64]},
              {:d, {5}, [:f32]},
              {:d, {0}, [:f32]},
              {:d, {6}, [:bf16]},
              {:z, sequence.(5), [:f32]},
              {:z, sequence.(6), [:bf16]},
              {:dt_bias, {6, 1}, [:f32]},
              {:initial_state, {2, 6, 5}, [:f32]},
              {:initial_state, {2, 0, 4}, [:f32]},
              {:initial_state, {2, 6, 4}, [:f64, :u16]},
              {:seq_idx, {2, 7}, [:s64, :f32]},
              {:seq_idx, {2, 8}, [:s32]}
            ],
            type <- types,
            do: {[{name, zeros.(shape, type)}], []}

      forged =
        for {name, fields} <- [
              x: [type: {:f, 8}],
              dt: [shape: nil],
              dt: [type: {:f, 8}, shape: nil],
              b: [data: nil]
            ] do
          {[{name, Map.merge(zeros.(sequence.(6), :f32), Map.new(fields))}], []}
        end

      of_options =
        for settings <- [
              [method: :poly],
              [reverse: true],
              [bidirectional: true]
            ],
            form == :step or Keyword.keys(settings) not in [[:reverse], [:bidirectional]],
            settings != [method: :poly] or form == :step,
            do: {[], settings}

      of_tensors ++ forged ++ of_options
    end

    defp good(:scan), do: Map.take(random([]), [:x, :dt, :a, :b, :c])

    defp good(:step) do
      inputs = random([])
      frames = Map.new([:x, :dt, :b, :c], &{&1, frame(inputs[&1], 0)})
      Map.merge(frames, Map.take(inputs, [:a, :initial_state]))
    end

    test "a call that is wrong is told so in the words of the native library, with it and without" do
      for form <- [:scan, :step] do
        for {changes, settings} <- faults(form) do
          told_the_same!(form, Map.merge(good(form), Map.new(changes)), options(settings))
        end

        assert Check.run!(form, good(form), options([])) == :ok
        assert Check.here!(form, good(form), options([])) == :ok
      end

      for form <- [:scan, :step], {name, tensor} <- good(form), field <- [:type, :shape, :data] do
        told_the_same!(form, %{good(form) | name => Map.put(tensor, field, nil)}, options([]))
      end

      told_the_same!(:step, good(:scan), options([]))
      complex = [a: Tensor.zeros({6, 4, 2}), c: Tensor.zeros({6, 4}), b: Tensor.zeros({6, 4, 2})]
      told_the_same!(:scan, Map.merge(good(:scan), Map.new(complex)), options([]))
      # Type and shape alone are looked at.
      huge = %{good(:scan).x | shape: {1, 2 ** 60, 6}}
      told_the_same!(:scan, %{good(:scan) | x: huge, dt: huge, b: good(:scan).a, c: good(:scan).a}, options([]))
      # States of whole vectors and blocks come to 2^63 bytes, and to just less.
      of = fn seq -> Map.new(good(:scan), fn {name, tensor} -> {name, long(name, tensor, seq)} end) end

      for {least, settings} <- [{2 ** 48, []}, {2 ** 47, [bidirectional: true]}] do
        told_the_same!(:scan, of.(least), options(settings))
        assert Check.here!(:scan, of.(least - 1), options(settings)) == :ok
      end

      assert_raise ArgumentError, ~r/to hold/, fn -> Check.run!(:scan, of.(2 ** 48 - 1), options([])) end
    end

    defp long(name, %{shape: {_, _, dim}} = tensor, seq) when name in [:x, :dt],
      do: %{tensor | shape: {1, seq, dim}}

    defp long(name, tensor, _seq), do: if(name in [:b, :c], do: good(:scan).a, else: tensor)

    test "of two faults, the same one is told with the native library and without" do
      for form <- [:scan, :step], {tensors, settings} <- faults(form), {more, further} <- faults(form) do
        told_the_same!(form, good(form) |> Map.merge(Map.new(tensors ++ more)), options(settings ++ further))
      end
    end
  end
end
