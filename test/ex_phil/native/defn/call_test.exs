if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.CallTest do
    # The scan inside of defn: values, gradients of everything through everything, vectorized tensors, errors.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    import Nx.Defn
    alias ExPhil.Native.{SelectiveScan, Tensor}

    defn in_defn(x, dt, a, b, c, d, opts \\ [method: :zoh]) do
      SelectiveScan.scan_with_state(x, dt, a, b, c,
        d: d,
        dt_softplus: true,
        method: opts[:method],
        backend: opts[:backend]
      )
    end

    defn(step_in_defn(state, x, dt, a, b, c), do: SelectiveScan.step(state, x, dt, a, b, c))

    defn(backward_in_defn(dy, x, dt, a, b, c), do: SelectiveScan.backward(dy, x, dt, a, b, c))

    # A scalar that every element of both results has a weight in.
    defnp weighed({y, state}) do
      wave = fn tensor -> Nx.sin(Nx.iota(Nx.shape(tensor), type: Nx.type(y))) end
      Nx.sum(y * wave.(y)) + Nx.sum(state * wave.(state))
    end

    defn loss(tensors, opts \\ []) do
      tensors |> both(opts) |> weighed()
    end

    deftransformp both(tensors, opts) do
      {given, optional} = Map.split(tensors, [:x, :dt, :a, :b, :c])
      opts = opts ++ Keyword.new(optional)
      {y, state} = SelectiveScan.scan_with_state(given.x, given.dt, given.a, given.b, given.c, opts)
      {y, if(match?({:c, _}, Nx.type(state)), do: Nx.add(Nx.real(state), absolute(state)), else: state)}
    end

    # Not analytic, so that conjugates count.
    defp absolute(state), do: state |> Nx.abs() |> Nx.pow(2)

    defn(gradients(tensors, opts \\ []), do: grad(tensors, &loss(&1, opts)))

    defp to_nx(inputs), do: Map.new(inputs, fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
    defp inputs(sizes \\ []), do: to_nx(random([type: {:f, 64}] ++ sizes))
    defp args(inputs), do: [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]

    defp complex(shape) do
      [re, im] = for _ <- 1..2, do: shape |> uniform({:f, 64}, -1.0, 0.3) |> Tensor.to_nx()
      Nx.complex(re, im)
    end

    defp close!(got, wanted, tolerance \\ 1.0e-11) do
      assert Nx.shape(got) == Nx.shape(wanted)
      error = got |> Nx.subtract(wanted) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      norm = wanted |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
      assert error <= tolerance * max(norm, 1.0)
    end

    @tag :native_in_defn
    test "gives in defn what it gives outside" do
      for type <- [{:f, 32}, {:f, 64}, {:bf, 16}, {:f, 16}], method <- [:zoh, :poly] do
        inputs = to_nx(random(type: type))
        opts = [d: inputs.d, dt_softplus: true, method: method]
        outside = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [opts])
        assert apply(__MODULE__, :in_defn, args(inputs) ++ [inputs.d, [method: method]]) == outside
      end
    end

    @tag :native_in_defn
    @tag :no_cuda
    test "the backend that is asked for in a defn is the only one that runs" do
      inputs = inputs()
      scan = &SelectiveScan.scan(&1, inputs.dt, inputs.a, inputs.b, inputs.c, backend: :cuda)
      assert_raise ExPhil.Native.Error, ~r/the cuda backend cannot run/, fn -> Nx.Defn.jit(scan).(inputs.x) end
    end

    @tag :no_native_in_defn
    test "with an Nx that cannot call out of a defn is that of Nx there, unless the native one is asked for" do
      inputs = inputs()
      outside = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [[d: inputs.d, dt_softplus: true]])
      inside = apply(__MODULE__, :in_defn, args(inputs) ++ [inputs.d])
      for at <- 0..1, do: close!(elem(inside, at), elem(outside, at))

      assert_raise ExPhil.Native.Error, ~r/this Nx cannot call the native library from a defn; add Nx 0.11/, fn ->
        apply(__MODULE__, :in_defn, args(inputs) ++ [inputs.d, [method: :zoh, backend: :cpu]])
      end
    end

    @tag :native_in_defn
    test "steps in defn as outside" do
      inputs = inputs()
      [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: inputs[name][[.., 0]]
      outside = SelectiveScan.step(inputs.initial_state, x, dt, inputs.a, b, c)
      assert step_in_defn(inputs.initial_state, x, dt, inputs.a, b, c) == outside
    end

    test "of a complex step, each tensor may be complex or pairs" do
      # A b of {batch, state} where batch is dim is that of the frame, also where only it is complex.
      for batch <- [6, 2] do
        [x, dt] = for _ <- 1..2, do: {batch, 6} |> uniform({:f, 64}, 0.1, 0.9) |> Tensor.to_nx()
        [a, state] = [complex({6, 4}), complex({batch, 6, 4})]
        pairs = &(&1 |> Tensor.from_nx() |> Tensor.to_nx())

        for shape <- [{batch, 4}, {batch, 3, 4}, {6, 4}], b = complex(shape), c = complex(shape) do
          {wanted, wanted_state} = SelectiveScan.step(state, x, dt, a, b, c, backend: :cpu)

          for a <- [a, pairs.(a)], b <- [b, pairs.(b)], c <- [c, pairs.(c)] do
            {y, got} = step_in_defn(state, x, dt, a, b, c)
            close!(y, wanted)
            assert distance(Tensor.from_nx(got), Tensor.from_nx(wanted_state)) < 1.0e-11
          end
        end
      end
    end

    test "of a complex scan that is vectorized, each tensor may be complex or pairs" do
      inputs = inputs()
      pairs = &(&1 |> Tensor.from_nx() |> Tensor.to_nx())
      [b, c] = for _ <- 1..2, do: complex({3, 2, 7, 4})

      for a <- [complex({3, 6, 4}), complex({6, 4})] do
        own? = Nx.rank(a) == 3
        vectorize = &Nx.vectorize(&1, :seat)

        wanted =
          for i <- 0..2 do
            own = if own?, do: a[i], else: a
            SelectiveScan.scan(inputs.x, inputs.dt, own, b[i], c[i], z: inputs.z, backend: :cpu)
          end

        for form_a <- [& &1, pairs], form_b <- [& &1, pairs], form_c <- [& &1, pairs] do
          given_a = if own?, do: vectorize.(form_a.(a)), else: form_a.(a)
          [given_b, given_c] = [vectorize.(form_b.(b)), vectorize.(form_c.(c))]
          y = SelectiveScan.scan(inputs.x, inputs.dt, given_a, given_b, given_c, z: inputs.z)
          close!(Nx.devectorize(y, keep_names: false), Nx.stack(wanted))
        end
      end
    end

    test "axes may have any names" do
      inputs = inputs()
      named = fn name, names -> Nx.rename(inputs[name], names) end
      [x, dt] = for name <- [:x, :dt], do: named.(name, [:batch, :time, :channels])
      a = named.(:a, [:dim, :state])

      for backend <- [:cpu, :nx] do
        scan = &SelectiveScan.scan(&1, dt, a, inputs.b, inputs.c, backend: backend)
        wanted = apply(SelectiveScan, :scan, args(inputs) ++ [[backend: backend]])
        assert Nx.Defn.jit(scan).(x) == Nx.rename(wanted, x.names)
      end
    end

    test "what is none of an expression is scanned where one is traced, in Nx too" do
      inputs = inputs()

      for backend <- [:cpu, :nx] do
        sum = fn s -> Nx.add(s, apply(SelectiveScan, :scan, args(inputs) ++ [[backend: backend]])) end
        close!(Nx.Defn.jit(sum).(1.0), sum.(1.0))
      end
    end

    @tag :native_in_defn
    test "is jitted, and tensors from outside are constants" do
      inputs = inputs()
      jitted = Nx.Defn.jit(fn x -> SelectiveScan.scan(x, inputs.dt, inputs.a, inputs.b, inputs.c) end)
      assert jitted.(inputs.x) == apply(SelectiveScan, :scan, args(inputs))
    end

    @tag :native_in_defn
    test "the gradient is that of Nx's own scan, for every input, method, mode and layout" do
      for method <- [:zoh, :foh, :bilinear, :poly], opts <- [[], [reverse: true], [bidirectional: true]] do
        inputs = inputs()
        opts = [method: method, dt_softplus: true] ++ opts
        native = gradients(inputs, [backend: :cpu] ++ opts)
        for {name, wanted} <- gradients(inputs, [backend: :nx] ++ opts), do: close!(native[name], wanted)
      end

      for {b, c} <- [{{2, 7, 2, 4}, {6, 4}}, {{6, 4}, {2, 7, 3, 4}}] do
        inputs = Map.merge(inputs(), to_nx(%{b: normal(b, {:f, 64}), c: normal(c, {:f, 64})}))
        native = gradients(inputs, backend: :cpu)
        for {name, wanted} <- gradients(inputs, backend: :nx), do: close!(native[name], wanted)
      end
    end

    @tag :native_in_defn
    test "the gradient of complex tensors is that of Nx" do
      inputs = %{x: inputs().x, dt: inputs().dt, a: complex({6, 4}), b: complex({2, 7, 4}), c: complex({2, 7, 4})}
      inputs = Map.put(inputs, :initial_state, complex({2, 6, 4}))
      native = gradients(inputs, backend: :cpu)

      for {name, wanted} <- gradients(inputs, backend: :nx) do
        assert Nx.type(native[name]) == Nx.type(inputs[name])
        close!(native[name], wanted)
      end
    end

    test "the gradient is the slope" do
      inputs = inputs(batch: 1, seq: 5, dim: 2, state: 2)
      gradients = gradients(inputs, dt_softplus: true)

      for {name, tensor} <- inputs, at <- 0..(Nx.size(tensor) - 1) do
        moved = fn by ->
          step = tensor |> Nx.size() |> then(&Nx.iota({&1})) |> Nx.equal(at) |> Nx.multiply(by)
          moved = Nx.add(tensor, Nx.reshape(step, Nx.shape(tensor)))
          loss(%{inputs | name => moved}, dt_softplus: true) |> Nx.to_number()
        end

        slope = (moved.(1.0e-5) - moved.(-1.0e-5)) / 2.0e-5

        assert_in_delta gradients[name] |> Nx.flatten() |> Nx.slice([at], [1]) |> Nx.sum() |> Nx.to_number(),
                        slope,
                        1.0e-7
      end
    end

    @tag :native_in_defn
    test "value and gradient through the state alone, and packed rows" do
      inputs = inputs()
      seq_idx = Nx.tensor([[0, 0, 1, 1, -1, 1, 2], [4, 4, 4, 4, 4, 5, 5]], type: {:s, 32})

      [native, nx] =
        for backend <- [:cpu, :nx] do
          Nx.Defn.value_and_grad(Map.take(inputs, [:x, :dt, :a, :b, :initial_state]), fn given ->
            {_y, state} =
              SelectiveScan.scan_with_state(given.x, given.dt, given.a, given.b, inputs.c,
                initial_state: given.initial_state,
                seq_idx: seq_idx,
                backend: backend
              )

            Nx.sum(Nx.multiply(state, state))
          end)
        end

      close!(elem(native, 0), elem(nx, 0))
      for {name, wanted} <- elem(nx, 1), do: close!(elem(native, 1)[name], wanted)
    end

    test "backward/7 in defn is backward/7" do
      inputs = inputs()
      outside = apply(SelectiveScan, :backward, [inputs.z | args(inputs)])
      inside = apply(__MODULE__, :backward_in_defn, [inputs.z | args(inputs)])
      for {name, wanted} <- outside, do: close!(inside[name], wanted)
    end

    test "backward/7 is in a defn where anything that it is given is an expression" do
      inputs = inputs(type: {:f, 32})
      [dy, dfinal_state] = for name <- [:z, :initial_state], do: inputs[name]
      {_y, _state, boundary_states} = apply(SelectiveScan, :scan_for_backward, args(inputs) ++ [[backend: :cpu]])
      given = %{dy: dy, dfinal_state: dfinal_state, boundary_states: boundary_states}

      backward = fn given ->
        opts = Keyword.new(Map.take(given, [:dfinal_state, :boundary_states]))
        apply(SelectiveScan, :backward, [given.dy | args(inputs)] ++ [opts])
      end

      wanted = backward.(given)

      for name <- Map.keys(given) do
        inside = Nx.Defn.jit(fn tensor -> backward.(%{given | name => tensor}) end).(given[name])
        for {name, wanted} <- wanted, do: close!(inside[name], wanted, 1.0e-5)
      end
    end

    test "complex gradients flow into backward/7 as such or in pairs, as outside of a defn" do
      a = complex({6, 4})
      dfinal_state = complex({2, 6, 4})
      inputs = %{inputs() | a: a, b: complex({2, 7, 4}), c: complex({6, 4})}
      pairs = &(&1 |> Tensor.from_nx() |> Tensor.to_nx())
      call = &SelectiveScan.backward(inputs.z, inputs.x, inputs.dt, &1, inputs.b, inputs.c, dfinal_state: &2)
      wanted = call.(a, dfinal_state)

      for a <- [a, pairs.(a)], dfinal_state <- [dfinal_state, pairs.(dfinal_state)], {name, wanted} <- wanted do
        got = Nx.Defn.jit(call).(a, dfinal_state)[name]
        assert distance(Tensor.from_nx(got), Tensor.from_nx(wanted)) < 1.0e-11
      end
    end

    test "every gradient has the form of what it belongs to, complex or pairs, whatever that of the others" do
      inputs = inputs()
      both = fn shape -> shape |> complex() |> then(&[&1, &1 |> Tensor.from_nx() |> Tensor.to_nx()]) end

      for a <- both.({6, 4}), b <- both.({2, 7, 4}), c <- both.({6, 4}), state <- both.({2, 6, 4}) do
        gradients = SelectiveScan.backward(inputs.z, inputs.x, inputs.dt, a, b, c, initial_state: state)

        for {name, given} <- [a: a, b: b, c: c, initial_state: state] do
          got = gradients[name]
          assert {name, Nx.type(got), Nx.shape(got)} == {name, Nx.type(given), Nx.shape(given)}
        end
      end
    end

    @tag :native_in_defn
    test "the native scan has first derivatives only, and says so; that of Nx has them all" do
      inputs = inputs(batch: 1, seq: 3, dim: 1, state: 1)

      second = fn backend ->
        Nx.Defn.grad(inputs.x, fn x ->
          x
          |> Nx.Defn.grad(fn x ->
            Nx.sum(Nx.pow(SelectiveScan.scan(x, inputs.dt, inputs.a, inputs.b, inputs.c, backend: backend), 3))
          end)
          |> Nx.sum()
        end)
      end

      assert_raise ArgumentError, ~r/first derivatives only; use backend: :nx/, fn -> second.(:cpu) end
      assert second.(:nx) |> Nx.abs() |> Nx.sum() |> Nx.to_number() > 0
    end

    test "second derivatives in Nx are slopes of the first, by every algorithm" do
      inputs = inputs(batch: 1, seq: 5, dim: 2, state: 2)

      loss = fn a, algorithm ->
        [inputs.x, inputs.dt, a, inputs.b, inputs.c]
        |> Kernel.++([[backend: :nx, algorithm: algorithm]])
        |> then(&apply(SelectiveScan, :scan, &1))
        |> Nx.sin()
        |> Nx.sum()
      end

      first = fn a, algorithm -> Nx.Defn.grad(a, &loss.(&1, algorithm)) |> Nx.sum() end
      step = Nx.multiply(Nx.sin(Nx.add(Nx.iota({2, 2}), 1)), 1.0e-5)
      [above, below] = for move <- [&Nx.add/2, &Nx.subtract/2], do: first.(move.(inputs.a, step), :blelloch)
      slope = Nx.divide(Nx.subtract(above, below), 2)

      for algorithm <- [:blelloch, :hillis_steele, :cumsum, :sequential] do
        second = Nx.Defn.grad(inputs.a, &first.(&1, algorithm))
        close!(Nx.multiply(Nx.sum(Nx.multiply(second, step)), 1.0e5), Nx.multiply(slope, 1.0e5), 1.0e-7)
      end
    end

    describe "vectorized tensors" do
      test "of one model join the batch" do
        inputs = inputs()
        xs = for factor <- 1..3, do: Nx.multiply(inputs.x, factor)

        {y, state} =
          SelectiveScan.scan_with_state(
            xs |> Nx.stack() |> Nx.vectorize(:game),
            inputs.dt,
            inputs.a,
            inputs.b,
            inputs.c,
            initial_state: inputs.initial_state,
            seq_idx: Nx.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]], type: {:s, 32})
          )

        assert {y.vectorized_axes, y.shape, state.vectorized_axes} == {[game: 3], {2, 7, 6}, [game: 3]}

        for {x, index} <- Enum.with_index(xs) do
          {one, last} =
            SelectiveScan.scan_with_state(x, inputs.dt, inputs.a, inputs.b, inputs.c,
              initial_state: inputs.initial_state,
              seq_idx: Nx.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]], type: {:s, 32})
            )

          close!(Nx.devectorize(y)[index], one)
          close!(Nx.devectorize(state)[index], last)
        end
      end

      test "have their axes in the order of the arguments, as in Nx" do
        inputs = inputs()
        seats = fn tensor, axis -> tensor |> List.duplicate(2) |> Nx.stack() |> Nx.vectorize(axis) end
        [b, c] = [seats.(inputs.b, :seat), seats.(inputs.c, :side)]
        y = SelectiveScan.scan(seats.(inputs.x, :game), inputs.dt, inputs.a, b, c)
        assert y.vectorized_axes == [game: 2, seat: 2, side: 2]

        [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: inputs[name][[.., 0]]
        {y, state} = SelectiveScan.step(seats.(inputs.initial_state, :side), seats.(x, :game), dt, inputs.a, b, c)
        assert y.vectorized_axes == [side: 2, game: 2]
        assert state.vectorized_axes == [side: 2, game: 2]
      end

      @tag :vectorized_grad
      test "of models of their own join the channels, whatever the layout, and have gradients" do
        for {b, c} <- [{{2, 7, 4}, {6, 4}}, {{2, 7, 2, 4}, {2, 7, 4}}] do
          inputs = Map.merge(inputs(), to_nx(%{b: normal(b, {:f, 64}), c: normal(c, {:f, 64})}))
          as = for factor <- 1..3, do: Nx.multiply(inputs.a, factor)
          together = %{inputs | a: as |> Nx.stack() |> Nx.vectorize(:model)}
          loss = loss(together)
          assert loss.vectorized_axes == [model: 3]
          gradients = gradients(together)

          for {a, index} <- Enum.with_index(as) do
            close!(Nx.devectorize(loss)[index], loss(%{inputs | a: a}))
            close!(Nx.devectorize(gradients.a)[index], gradients(%{inputs | a: a}).a)
          end
        end
      end

      test "of any parameter alone join the channels" do
        inputs = %{inputs() | b: Tensor.to_nx(normal({6, 4}, {:f, 64})), c: Tensor.to_nx(normal({6, 4}, {:f, 64}))}
        scan = &apply(SelectiveScan, :scan, args(&1) ++ [[d: &1.d, z: &1.z, dt_bias: &1.dt_bias]])

        for name <- [:a, :b, :c, :d, :dt_bias] do
          own = for factor <- 1..3, do: Nx.multiply(inputs[name], factor)
          y = scan.(%{inputs | name => own |> Nx.stack() |> Nx.vectorize(:model)})
          assert {name, y.vectorized_axes} == {name, [model: 3]}

          for {tensor, index} <- Enum.with_index(own) do
            close!(Nx.devectorize(y)[index], scan.(%{inputs | name => tensor}))
          end
        end
      end

      @tag :vectorized_grad
      test "have the gradients in Nx that they have natively, whichever they are asked for" do
        inputs = inputs()
        xs = for(factor <- 1..3, do: Nx.multiply(inputs.x, factor)) |> Nx.stack() |> Nx.vectorize(:game)
        as = for(factor <- 1..3, do: Nx.multiply(inputs.a, factor)) |> Nx.stack() |> Nx.vectorize(:game)

        # Of y, and of the final state.
        for {x, a} <- [{xs, inputs.a}, {xs, as}, {inputs.x, as}], result <- [0, 1] do
          [native, in_nx] =
            for backend <- [:cpu, :nx] do
              Nx.Defn.grad({x, a}, fn {x, a} ->
                SelectiveScan.scan_with_state(x, inputs.dt, a, inputs.b, inputs.c, backend: backend)
                |> elem(result)
                |> Nx.sum()
              end)
            end

          for at <- 0..1 do
            assert elem(in_nx, at).vectorized_axes == elem(native, at).vectorized_axes
            [got, wanted] = for gradients <- [in_nx, native], do: gradients |> elem(at) |> Nx.devectorize()
            close!(got, wanted)
          end
        end
      end

      test "are constants, too, where others are arguments" do
        inputs = inputs()

        [x, a] =
          for tensor <- [inputs.x, inputs.a], do: tensor |> List.duplicate(3) |> Nx.stack() |> Nx.vectorize(:game)

        for backend <- [:cpu, :nx] do
          scan = fn a -> SelectiveScan.scan(x, inputs.dt, a, inputs.b, inputs.c, backend: backend) end
          close!(Nx.devectorize(Nx.Defn.jit(scan).(a)), Nx.devectorize(scan.(a)))
        end
      end

      @tag :vectorized_grad
      test "have the gradients of each alone by the backward call, native and in Nx" do
        inputs = inputs()
        xs = for factor <- 1..3, do: Nx.multiply(inputs.x, factor)
        together = %{inputs | x: xs |> Nx.stack() |> Nx.vectorize(:game)}
        dy = inputs.z |> List.duplicate(3) |> Nx.stack() |> Nx.vectorize(:game)

        for backend <- [:cpu, :nx] do
          gradients = apply(SelectiveScan, :backward, [dy | args(together)] ++ [[backend: backend]])

          for {x, index} <- Enum.with_index(xs),
              {name, alone} <- apply(SelectiveScan, :backward, [inputs.z | args(%{inputs | x: x})]) do
            assert gradients[name].vectorized_axes == [game: 3]
            close!(Nx.devectorize(gradients[name])[index], alone)
          end
        end
      end

      test "step" do
        inputs = inputs()
        [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: inputs[name][[.., 0]]
        xs = Nx.stack([x, Nx.negate(x)]) |> Nx.vectorize(:game)
        {y, _state} = SelectiveScan.step(inputs.initial_state, xs, dt, inputs.a, b, c)
        {one, _state} = SelectiveScan.step(inputs.initial_state, Nx.negate(x), dt, inputs.a, b, c)
        close!(Nx.devectorize(y)[1], one)
      end

      test "that cannot be one scan" do
        inputs = inputs()
        dy = Nx.stack([inputs.z, inputs.z]) |> Nx.vectorize(:game)

        assert_raise ArgumentError,
                     "expected dy to have no vectorized axes beside those of the inputs, [], got: [game: 2]",
                     fn -> apply(SelectiveScan, :backward, [dy | args(inputs)]) end

        a = Nx.stack([inputs.a, inputs.a]) |> Nx.vectorize(:model)
        index = Nx.broadcast(Nx.tensor(0, type: {:s, 32}), {2, 2, 7}) |> Nx.vectorize(:game)

        assert_raise ArgumentError, ~r/expected seq_idx to be the same for all/, fn ->
          SelectiveScan.scan(inputs.x, inputs.dt, a, inputs.b, inputs.c, seq_idx: index)
        end
      end
    end

    describe "a wrong call is refused when it is traced" do
      test "in the words of the native library" do
        inputs = inputs()

        assert_raise ArgumentError, "expected dt to have shape {2, 7, 6}, got: {2, 7, 5}", fn ->
          in_defn(inputs.x, inputs.dt[[.., .., 0..4]], inputs.a, inputs.b, inputs.c, inputs.d)
        end

        assert_raise ArgumentError, ~r/expected method to be one of :zoh, .* got: :zho/, fn ->
          in_defn(inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, inputs.d, method: :zho)
        end

        assert_raise ArgumentError, "expected a to have type f64 where x has type f64, got: f32", fn ->
          in_defn(inputs.x, inputs.dt, Nx.as_type(inputs.a, :f32), inputs.b, inputs.c, inputs.d)
        end
      end

      test "the question which backend an expression or vectorized tensors take" do
        inputs = inputs()
        ask = fn x -> SelectiveScan.backend_for(x, inputs.dt, inputs.a, inputs.b, inputs.c) end
        words = ~r/^expected x to be a tensor outside of defn and without vectorized axes, got: /
        assert_raise ArgumentError, words, fn -> Nx.Defn.jit(fn x -> elem({x, ask.(x)}, 0) end).(inputs.x) end
        assert_raise ArgumentError, words, fn -> ask.(Nx.vectorize(Nx.stack([inputs.x, inputs.x]), :game)) end
      end

      test "complex where it should be real" do
        inputs = inputs()
        complex = Nx.complex(inputs.z, inputs.z)

        for call <- [&SelectiveScan.backward/6, &backward_in_defn/6] do
          assert_raise ArgumentError, "expected dy to be real, got: numbers of type c128", fn ->
            apply(call, [complex | args(inputs)])
          end
        end

        assert_raise ArgumentError, "expected b to be real where a is real, got: numbers of type c128", fn ->
          in_defn(inputs.x, inputs.dt, inputs.a, complex({2, 7, 4}), inputs.c, inputs.d)
        end
      end
    end
  end
end
