if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.NxTest do
    # Nx tensors go in, and Nx tensors come out.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    alias ExPhil.Native.{SelectiveScan, Tensor}

    defp args(inputs), do: [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]

    test "a tensor survives the way there and back" do
      for type <- [:f32, :f64, :bf16, :f16, :s32, :u8] do
        tensor = Tensor.from_list([[1, 2, 3]], type)
        nx = Tensor.to_nx(tensor)
        assert Nx.type(nx) == tensor.type
        assert Nx.to_flat_list(nx) |> Enum.map(&trunc/1) == [1, 2, 3]
        assert Tensor.from_nx(nx) == tensor
      end
    end

    test "a tensor without axes does, too" do
      assert Nx.tensor(1.5) |> Tensor.from_nx() |> Tensor.to_list() == 1.5
      assert Nx.tensor(1.5) |> Tensor.from_nx() |> Tensor.to_nx() == Nx.tensor(1.5)
    end

    test "a complex tensor has a trailing axis of 2" do
      nx = Nx.tensor([Complex.new(1, 2), Complex.new(3, 4)], type: {:c, 64})
      assert Tensor.from_nx(nx) == Tensor.from_list([[1, 2], [3, 4]])
      assert nx |> Tensor.from_nx() |> Tensor.to_nx(complex: true) == nx
    end

    test "what no tensor of ours can be is refused, and what has no complex numbers as such" do
      for {tensor, words} <- [
            {Nx.vectorize(Nx.iota({2, 3}, type: :f32), :seat), "without vectorized axes, got: [seat: 2]"},
            {Nx.tensor([1, 2], type: :u4), "a type such as {:f, 32}"},
            {Nx.template({2}, :f32), "expected tensor to hold numbers, got: #Nx.Tensor"},
            {Nx.Defn.Expr.tensor(Nx.tensor([1.0])), "expected tensor to hold numbers, got: #Nx.Tensor"},
            {%{Nx.tensor([1.0]) | shape: {2}}, "expected tensor to hold 8 bytes, got: 4 bytes"},
            {nil, "expected tensor to be an Nx.Tensor, got: nil"}
          ] do
        error = assert_raise ArgumentError, fn -> Tensor.from_nx(tensor) end
        assert error.message =~ words
      end

      for {tensor, opts, words} <- [
            {Tensor.zeros({2, 3}), [complex: true], "a trailing axis of 2, got: f32 of {2, 3}"},
            {Tensor.zeros({}), [complex: true], "a trailing axis of 2, got: f32 of {}"},
            {Tensor.zeros({2, 2}, :bf16), [complex: true], "type f32 or f64 with a trailing axis of 2, got: bf16"},
            {Tensor.zeros({2, 2}), [complx: true], "expected options to be among :complex, got: :complx"},
            {Tensor.zeros({2, 2}), [complex: 1], "expected complex to be a boolean, got: 1"},
            {Tensor.zeros({0, 3}), [], "expected tensor to have no empty axis, as one of Nx, got: {0, 3}"},
            {%{Tensor.zeros({2}) | data: <<0>>}, [], "to hold 8 bytes, got: 1 bytes"},
            {nil, [], "expected an ExPhil.Native.Tensor, got: nil"},
            {Tensor.zeros({2, 2}), %{complex: true}, "expected options to be a keyword list"}
          ] do
        error = assert_raise ArgumentError, fn -> Tensor.to_nx(tensor, opts) end
        assert error.message =~ words
      end
    end

    # Fields that anybody can write into a struct, and what is said of them.
    defp forged do
      of_a_backend = "to have data that a backend of Nx holds, got: "

      [
        {:names, nil, "to have a list of as many names as axes, 3, got: nil"},
        {:names, [nil], "to have a list of as many names as axes, 3, got: [nil]"},
        {:shape, {2, 7, 5}, "to hold 280 bytes, got: 336 bytes"},
        {:shape, nil, "to have a shape that is a tuple of positive integers, got: nil"},
        {:shape, {2, 7, -6}, "to have a shape that is a tuple of positive integers, got: {2, 7, -6}"},
        {:shape, {2, 7, 0}, "to have a shape that is a tuple of positive integers, got: {2, 7, 0}"},
        {:type, {:f, 64}, "to hold 672 bytes, got: 336 bytes"},
        {:type, :foo, "to have a type such as {:f, 32}, got: :foo"},
        {:type, {:c, self()}, "to have a type such as {:f, 32}, got: {:c, "},
        {:type, {:c, 32}, "to have type f32, bf16, f16 or f64, got: c32"},
        {:data, %Nx.BinaryBackend{state: <<>>}, "to hold 336 bytes, got: 0 bytes"},
        {:data, %Nx.BinaryBackend{state: nil}, "to hold 336 bytes, got: nil"},
        {:data, nil, of_a_backend <> "nil"},
        {:data, %URI{}, of_a_backend <> "URI"},
        {:data, %Nx.TemplateBackend{}, "to hold numbers"},
        {:vectorized_axes, nil, "to have vectorized axes that are a list, got: nil"},
        {:vectorized_axes, [1], "to have vectorized axes with names and sizes, got: [1]"},
        {:vectorized_axes, [game: -1], "to have a shape that is a tuple of positive integers"},
        {:vectorized_axes, [game: 2], "to hold 672 bytes, got: 336 bytes"}
      ]
    end

    test "tensors with forged fields" do
      of_nx = Map.new(random([]), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)

      for {field, value, words} <- forged(), name <- [:x, :dt, :z], backend <- [:cpu, :nx, :auto] do
        forged = Map.put(of_nx[name], field, value)
        [given, opts] = if name == :z, do: [of_nx, [z: forged]], else: [Map.put(of_nx, name, forged), []]
        opts = [{:backend, backend} | opts]

        for call <- [
              &apply(SelectiveScan, :scan, args(given) ++ [&1]),
              &apply(SelectiveScan, :backward, [of_nx.z | args(given)] ++ [&1]),
              &apply(SelectiveScan, :backend_for, args(given) ++ [&1])
            ] do
          message = assert_raise(ArgumentError, fn -> call.(opts) end).message
          assert message =~ "expected #{name} " <> words
        end
      end

      forged = %{of_nx.initial_state | data: nil}
      frames = for tensor <- [of_nx.x, of_nx.dt], do: tensor[[.., 0]]
      step = fn -> apply(SelectiveScan, :step, [forged | frames] ++ [of_nx.a, of_nx.b, of_nx.c]) end
      assert_raise ArgumentError, ~r/expected state to have data that a backend of Nx holds, got: nil/, step
    end

    test "axes have the names of those that a result is like, eagerly and in a defn" do
      of_nx = Map.new(random([]), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
      named = %{of_nx | x: Nx.rename(of_nx.x, [:game, :frame, nil]), a: Nx.rename(of_nx.a, [:channel, :state])}

      for backend <- [:cpu, :nx] do
        scan = &apply(SelectiveScan, :scan_with_state, args(&1) ++ [[backend: backend]])
        backward = &apply(SelectiveScan, :backward, [&1.z | args(&1)] ++ [[backend: backend]])

        for in_defn? <- [false, true] do
          [scan, backward] = for call <- [scan, backward], do: if(in_defn?, do: Nx.Defn.jit(call), else: call)
          {y, state} = scan.(named)
          assert {y.names, state.names} == {[:game, :frame, nil], [nil, nil, nil]}
          assert {Nx.rename(y, [nil, nil, nil]), state} == scan.(of_nx)

          gradients = backward.(named)
          assert Map.new([:x, :a, :b], &{&1, gradients[&1].names}) == Map.new([:x, :a, :b], &{&1, named[&1].names})
        end

        gradient = Nx.Defn.grad(named.x, fn x -> %{named | x: x} |> scan.() |> elem(0) |> Nx.sum() end)
        assert gradient.names == named.x.names
      end
    end

    test "complex numbers beside those that they do not fit" do
      of_nx = Map.new(random([]), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
      complex = for name <- [:a, :b, :c], into: of_nx, do: {name, Nx.complex(of_nx[name], of_nx[name])}
      refused = &assert_raise(ArgumentError, fn -> apply(SelectiveScan, :scan, args(&1) ++ [&2]) end).message
      narrow = for name <- [:x, :dt], into: complex, do: {name, Nx.as_type(complex[name], :bf16)}

      assert refused.(narrow, []) ==
               "expected b to have type bf16 where x has type bf16, got: c64; " <>
                 "complex numbers of 16 bits are given as a trailing axis of 2"

      assert refused.(%{complex | c: Nx.as_type(complex.c, :c128)}, []) ==
               "expected c to have type c64 where x has type f32, got: c128"

      assert refused.(%{complex | a: Nx.as_type(complex.a, :c128)}, []) =~ "expected a to have type c64"

      assert refused.(%{complex | b: of_nx.b}, []) ==
               "expected b to be complex where a is, or to have a trailing axis of 2, " <>
                 "got: real numbers of shape {2, 7, 4}"

      assert refused.(complex, initial_state: of_nx.initial_state) =~
               "expected initial_state to be complex where a is"
    end

    test "results are those of the same numbers in tensors of ours" do
      for type <- [{:f, 32}, {:f, 64}, {:bf, 16}] do
        inputs = random(type: type)
        optional = Map.take(inputs, [:d, :z, :dt_bias, :initial_state])
        {y, state} = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [Keyword.new(optional)])

        of_nx = Map.new(inputs, fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
        optional = Map.take(of_nx, [:d, :z, :dt_bias, :initial_state])
        results = apply(SelectiveScan, :scan_with_state, args(of_nx) ++ [Keyword.new(optional)])
        assert results == {Tensor.to_nx(y), Tensor.to_nx(state)}
        assert apply(SelectiveScan, :scan, args(of_nx) ++ [Keyword.new(optional)]) == Tensor.to_nx(y)
      end
    end

    test "complex tensors of Nx give complex states and real outputs, and step on" do
      parts = %{
        a: normal({6, 4, 2}, {:f, 32}),
        b: normal({2, 7, 4, 2}, {:f, 32}),
        c: normal({2, 7, 4, 2}, {:f, 32})
      }

      inputs = Map.merge(random([]), parts)
      {y, state} = apply(SelectiveScan, :scan_with_state, args(inputs))

      of_nx =
        Map.new(inputs, fn {name, tensor} -> {name, Tensor.to_nx(tensor, complex: is_map_key(parts, name))} end)

      assert {of_y, of_state} = apply(SelectiveScan, :scan_with_state, args(of_nx))
      assert of_y == Tensor.to_nx(y)
      assert Nx.type(of_state) == {:c, 64}
      assert Tensor.from_nx(of_state) == state

      [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: of_nx[name][[.., 0]]
      zero = Nx.broadcast(Nx.tensor(0, type: {:c, 64}), {2, 6, 4})
      assert {step_y, stepped} = SelectiveScan.step(zero, x, dt, of_nx.a, b, c)
      assert Nx.type(stepped) == {:c, 64}
      assert Nx.all_close(step_y, of_y[[.., 0]], rtol: 1.0e-5) |> Nx.to_number() == 1
    end

    test "gradients and boundary states are of Nx, and complex where what they belong to is" do
      parts = %{
        a: complex_rates({6, 4}, {:f, 32}),
        b: normal({2, 7, 4, 2}, {:f, 32}),
        c: normal({6, 4, 2}, {:f, 32}),
        initial_state: normal({2, 6, 4, 2}, {:f, 32}),
        dfinal_state: normal({2, 6, 4, 2}, {:f, 32})
      }

      real = Map.put(random([]), :dfinal_state, normal({2, 6, 4}, {:f, 32}))

      for {inputs, complex} <- [{real, []}, {Map.merge(real, parts), Map.keys(parts)}] do
        of_nx = Map.new(inputs, fn {name, tensor} -> {name, Tensor.to_nx(tensor, complex: name in complex)} end)

        [ours, theirs] =
          for inputs <- [inputs, of_nx] do
            opts = Keyword.new(Map.take(inputs, [:d, :z, :dt_bias, :initial_state])) ++ [method: :poly]
            {y, state, boundary_states} = apply(SelectiveScan, :scan_for_backward, args(inputs) ++ [opts])
            opts = [dfinal_state: inputs.dfinal_state, boundary_states: boundary_states] ++ opts
            gradients = apply(SelectiveScan, :backward, [inputs.z | args(inputs)] ++ [opts])
            Map.merge(gradients, %{y: y, state: state, boundary_states: boundary_states})
          end

        complex = if complex == [], do: [], else: [:state, :boundary_states | complex]
        assert Map.keys(ours) == Map.keys(theirs)

        for {name, tensor} <- ours, tensor != nil do
          assert {name, theirs[name]} == {name, Tensor.to_nx(tensor, complex: name in complex)}
        end
      end
    end

    test "templates, which hold no numbers, are refused" do
      inputs = Map.new(random(state: 2), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
      scan = fn x, opts -> SelectiveScan.scan(x, inputs.dt, inputs.a, inputs.b, inputs.c, opts) end

      for backend <- [:auto, :nx] do
        template = Nx.template(Nx.shape(inputs.x), :f32)

        assert_raise ArgumentError, ~r/expected x to hold numbers, got: /, fn ->
          scan.(template, backend: backend)
        end

        d = Nx.template({2}, :f32)

        assert_raise ArgumentError, ~r/expected d to hold numbers, got: /, fn ->
          scan.(inputs.x, d: d, backend: backend)
        end
      end
    end

    test "complex numbers where there are none are refused" do
      inputs = Map.new(random(state: 2), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)

      for name <- [:b, :c] do
        # With its trailing 2 it would have the shape of two groups.
        complex = Tensor.to_nx(normal({2, 7, 2, 2}, {:f, 32}), complex: true)
        message = "expected #{name} to be real where a is real, got: numbers of type c64"

        for call <- [
              fn args -> apply(SelectiveScan, :scan, args) end,
              fn args -> apply(SelectiveScan, :backward, [inputs.z | args]) end
            ] do
          assert_raise ArgumentError, message, fn -> call.(args(%{inputs | name => complex})) end
        end
      end

      for name <- [:x, :dt] do
        # With a trailing 2 it would have more channels, in a step more axes.
        complex = Nx.complex(inputs[name], inputs[name])

        assert_raise ArgumentError, "expected #{name} to be real, got: numbers of type c64", fn ->
          apply(SelectiveScan, :scan, args(%{inputs | name => complex}))
        end
      end

      for name <- [:d, :z, :dt_bias],
          function <- [&SelectiveScan.scan/6, &SelectiveScan.backward(inputs.z, &1, &2, &3, &4, &5, &6)] do
        opts = [{name, Nx.complex(inputs[name], inputs[name])}]

        assert_raise ArgumentError, "expected #{name} to be real, got: numbers of type c64", fn ->
          apply(function, args(inputs) ++ [opts])
        end
      end

      assert_raise ArgumentError, "expected dy to be real, got: numbers of type c64", fn ->
        apply(SelectiveScan, :backward, [Nx.complex(inputs.z, inputs.z) | args(inputs)])
      end

      a = Tensor.to_nx(complex_rates({6, 2}, {:f, 32}), complex: true)

      assert_raise ArgumentError, ~r/expected b to have shape/, fn ->
        apply(SelectiveScan, :scan, args(%{inputs | a: a}))
      end
    end

    test "complex numbers beside a real a are refused, whatever shape they have" do
      # With its trailing 2, an a of {6, 2} would be one of complex numbers; states have the shape of one beside it.
      inputs = Map.new(random(state: 2), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
      states = Nx.complex(inputs.initial_state, inputs.initial_state)
      [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: inputs[name][[.., 0]]
      scan = &apply(SelectiveScan, :scan, args(&1) ++ [&2])
      backward = &apply(SelectiveScan, :backward, [inputs.z | args(inputs)] ++ [&1])

      for {call, words} <- [
            # With its trailing 2 it would have two states.
            {fn -> scan.(%{inputs | b: complex({2, 7})}, []) end, "b to be real where a is real"},
            {fn -> scan.(inputs, initial_state: states) end, "initial_state to be real where a is real"},
            {fn -> SelectiveScan.step(states, x, dt, inputs.a, b, c) end, "state to be real where a is real"},
            {fn -> backward.(initial_state: states) end, "initial_state to be real where a is real"},
            {fn -> backward.(dfinal_state: states) end, "dfinal_state to be real where a is real"},
            {fn -> backward.(boundary_states: states) end, "boundary_states to be real where a is real"}
          ] do
        assert_raise ArgumentError, "expected #{words}, got: numbers of type c64", call
      end
    end

    test "a complex a has two axes" do
      inputs = Map.new(random(state: 2), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)

      # With its trailing 2, the first would be a real {dim, state}.
      for shape <- [{6}, {6, 2, 2}] do
        message = "expected a to have shape {dim, state} where its numbers are of type c64, got: #{inspect(shape)}"
        given = args(%{inputs | a: complex(shape)})

        for call <- [
              fn -> apply(SelectiveScan, :scan, given) end,
              fn -> apply(SelectiveScan, :backend_for, given) end,
              fn -> apply(SelectiveScan, :backward, [inputs.z | given]) end
            ] do
          assert_raise ArgumentError, message, call
        end
      end
    end

    test "a type that no tensor of ours can have is told as any other that is wrong" do
      inputs = Map.new(random([]), fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
      of = &(List.duplicate(1, Tuple.product(&2)) |> Nx.tensor(type: &1) |> Nx.reshape(&2))
      scan = &apply(SelectiveScan, :scan, args(&1) ++ [&2])

      for {call, words} <- [
            {fn -> scan.(%{inputs | x: of.(:u4, {2, 7, 6})}, []) end,
             "x to have type f32, bf16, f16 or f64, got: u4"},
            {fn -> scan.(inputs, d: of.(:s4, {6})) end, "d to have type f32, bf16, f16 or f64, got: s4"},
            {fn -> scan.(inputs, seq_idx: of.(:s4, {2, 7})) end, "seq_idx to have type s32, got: s4"},
            {fn -> SelectiveScan.step(of.(:u4, {2, 6, 4}), inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c) end,
             "state to have type f32, bf16, f16 or f64, got: u4"}
          ] do
        assert_raise ArgumentError, "expected " <> words, call
      end
    end

    defp complex(shape), do: Nx.broadcast(Complex.new(1.0, 1.0), shape)

    test "x decides whether the results are of Nx" do
      inputs = random([])
      mixed = %{inputs | x: Tensor.to_nx(inputs.x)}
      assert %Nx.Tensor{} = apply(SelectiveScan, :scan, args(mixed))
      mixed = %{inputs | a: Tensor.to_nx(inputs.a)}
      assert %Tensor{} = apply(SelectiveScan, :scan, args(mixed))
    end

    test "a wrong shape is named as with tensors of ours" do
      inputs = random([])

      assert_raise ArgumentError, "expected dt to have shape {2, 7, 6}, got: {3}", fn ->
        apply(SelectiveScan, :scan, args(%{inputs | dt: Nx.tensor([1.0, 2.0, 3.0])}))
      end
    end
  end
end
