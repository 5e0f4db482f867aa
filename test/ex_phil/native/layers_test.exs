if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.LayersTest do
    use ExUnit.Case, async: true
    doctest ExPhil.Native.Layers

    alias ExPhil.Native.{Layers, SelectiveScan}

    @parameters %{
      "ssm" => %{
        "A_log" => Nx.broadcast(0.3, {6, 4}),
        "D" => Nx.broadcast(2.0, {6}),
        "dt_bias" => Nx.broadcast(-1.0, {6})
      }
    }

    # What the layer gives for these inputs, by their names.
    defp predict(inputs, opts \\ [], layer \\ &Layers.selective_scan/2) do
      nodes = for {name, tensor} <- inputs, into: %{}, do: {name, node(name, tensor)}
      model = with {y, state} <- layer.(nodes, [name: "ssm"] ++ opts), do: Axon.container({y, state})
      Axon.predict(model, Axon.ModelState.new(@parameters), Map.new(inputs, fn {name, t} -> {"#{name}", t} end))
    end

    # What it is to give: the function of the scan with the same tensors and options.
    defp wanted(inputs, opts) do
      [a_log, d, dt_bias] = for name <- ["A_log", "D", "dt_bias"], do: own(name, Nx.type(inputs.x))
      a = a_log |> Nx.exp() |> Nx.negate()
      optional = inputs |> Map.take([:z, :initial_state]) |> Map.to_list()
      opts = Keyword.merge([d: d, dt_bias: dt_bias, dt_softplus: true], optional ++ opts)

      case inputs do
        %{state: state} -> SelectiveScan.step(state, inputs.x, inputs.dt, a, inputs.b, inputs.c, opts)
        _whole -> SelectiveScan.scan(inputs.x, inputs.dt, a, inputs.b, inputs.c, opts)
      end
    end

    defp own(name, type), do: Nx.as_type(@parameters["ssm"][name], type)

    defp node(name, tensor), do: Axon.input("#{name}", shape: put_elem(Nx.shape(tensor), 0, nil))

    defp random(seq) do
      {inputs, _key} =
        Enum.map_reduce([x: 6, dt: 6, b: 4, c: 4, z: 6], Nx.Random.key(7), fn {name, width}, key ->
          {tensor, key} = Nx.Random.normal(key, shape: {1, seq, width})
          {{name, tensor}, key}
        end)

      Map.new(inputs)
    end

    defp frames(inputs, range), do: Map.new(inputs, fn {name, tensor} -> {name, tensor[[.., range]]} end)

    defp close!(got, wanted), do: assert(distance(got, wanted) < 1.0e-5)

    defp distance(got, wanted) do
      got |> Nx.subtract(wanted) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()
    end

    test "rows that are packed into one do not see each other" do
      inputs = random(7)
      rows = for range <- [0..2, 3..6], do: inputs |> frames(range) |> predict()
      packed = Map.put(inputs, :seq_idx, Nx.tensor([[0, 0, 0, 1, 1, 1, 1]], type: :s32))
      close!(predict(packed), Nx.concatenate(rows, axis: 1))
    end

    test "a scan begins with the state that it is given" do
      inputs = Map.put(random(5), :initial_state, Nx.broadcast(0.5, {1, 6, 4}))
      close!(predict(inputs), wanted(inputs, []))
    end

    test "every option of the scan reaches it" do
      inputs = random(7)
      usual = predict(inputs)

      for opts <- [
            [method: :bilinear],
            [method: :foh, coefficients: :taylor],
            [bidirectional: true],
            [reverse: true],
            [dt_softplus: false],
            [dt_limit: {0.5, 0.6}]
          ] do
        got = predict(inputs, opts)
        close!(got, wanted(inputs, opts))
        assert {opts, distance(got, usual)} > {opts, 0.01}
      end

      # Of these the result is the same, but for rounding.
      for opts <- [[backend: :nx, algorithm: :sequential], [backend: :cpu]],
          do: close!(predict(inputs, opts), usual)
    end

    test "every option of the scan that a step has reaches it" do
      inputs = random(1) |> Map.new(fn {name, tensor} -> {name, Nx.squeeze(tensor, axes: [1])} end)
      inputs = Map.put(inputs, :state, Nx.broadcast(0.5, {1, 6, 4}))

      for opts <- [[], [method: :bilinear], [dt_softplus: false], [dt_limit: {0.5, 0.6}]] do
        {y, state} = predict(inputs, opts, &Layers.selective_scan_step/2)
        {wanted_y, wanted_state} = wanted(inputs, opts)
        close!(y, wanted_y)
        close!(state, wanted_state)
      end
    end

    test "over inputs in f64 everything is f64" do
      inputs = Map.new(random(5), fn {name, tensor} -> {name, Nx.as_type(tensor, :f64)} end)
      got = predict(inputs)
      assert Nx.type(got) == {:f, 64}
      assert distance(got, wanted(inputs, [])) < 1.0e-12
    end

    test "an input that is nil is none" do
      inputs = random(3)
      nodes = for {name, tensor} <- inputs, into: %{}, do: {name, node(name, tensor)}
      model = Layers.selective_scan(%{nodes | z: nil})
      assert model |> Axon.get_inputs() |> Map.keys() |> Enum.sort() == ["b", "c", "dt", "x"]

      assert_raise ArgumentError, "expected inputs to have :dt, got: :b, :c, :x, :z", fn ->
        Layers.selective_scan(%{nodes | dt: nil})
      end
    end

    test "parameters begin as Mamba's" do
      {dim, state} = {200, 5}

      inputs =
        for {name, width} <- [x: dim, dt: dim, b: state, c: state], do: {name, Nx.template({1, 2, width}, :f32)}

      nodes = Map.new(inputs, fn {name, template} -> {name, node(name, template)} end)
      {init, _predict} = nodes |> Layers.selective_scan(name: "ssm") |> Axon.build(seed: 0)
      templates = Map.new(inputs, fn {name, template} -> {"#{name}", template} end)
      %{data: %{"ssm" => own}} = init.(templates, Axon.ModelState.empty())

      close!(own["A_log"], Nx.broadcast(Nx.log(Nx.tensor([1, 2, 3, 4, 5])), {dim, state}))
      assert own["D"] == Nx.broadcast(Nx.tensor(1.0), {dim})

      steps = own["dt_bias"] |> Nx.exp() |> Nx.log1p() |> Nx.log() |> Nx.to_list()
      [low, high] = for step <- [0.001, 0.1], do: :math.log(step)
      assert Enum.min(steps) > low - 1.0e-3 and Enum.max(steps) < high + 1.0e-3
      # As many in every fifth of the range, give or take four standard deviations.
      fifths = Enum.frequencies_by(steps, &trunc(5 * (&1 - low) / (high - low)))
      for fifth <- 0..4, do: assert_in_delta(fifths[fifth], dim / 5, 4 * :math.sqrt(dim * 0.2 * 0.8))
    end

    test "a convolution reaches over four frames where it is not told" do
      x = Axon.input("x")
      {step, _window} = Layers.causal_conv_step(x, Axon.input("window"), name: "conv")
      window = Nx.template({1, 4, 6}, :f32)

      for {model, inputs} <- [
            {Layers.causal_conv(x, name: "conv"), %{"x" => Nx.template({1, 9, 6}, :f32)}},
            {step, %{"x" => Nx.template({1, 6}, :f32), "window" => window}}
          ] do
        {init, _predict} = Axon.build(model)
        %{data: %{"conv" => conv}} = init.(inputs, Axon.ModelState.empty())
        assert Nx.shape(conv["kernel"]) == {4, 1, 6}
      end
    end

    test "packed rows and an initial state go together, with all parameters and with none" do
      inputs =
        Map.merge(random(4), %{
          seq_idx: Nx.tensor([[0, 0, 1, 1]], type: :s32),
          initial_state: Nx.broadcast(0.5, {1, 6, 4})
        })

      for opts <- [[], [skip: false, dt_bias: false]], do: assert(Nx.shape(predict(inputs, opts)) == {1, 4, 6})
    end

    describe "refuses" do
      defp nodes(names), do: Map.new(names, fn name -> {name, Axon.input("#{name}")} end)

      test "nodes that it does not know, of a step those of a whole scan" do
        assert_raise ArgumentError,
                     "expected inputs to be among :b, :c, :dt, :initial_state, :seq_idx, :x, :z, got: :d",
                     fn -> Layers.selective_scan(nodes([:x, :dt, :b, :c, :d])) end

        assert_raise ArgumentError,
                     "expected inputs to be among :b, :c, :dt, :state, :x, :z, got: :seq_idx",
                     fn -> Layers.selective_scan_step(nodes([:x, :dt, :b, :c, :state, :seq_idx])) end
      end

      test "convolutions over no frames" do
        for layer <- [&Layers.causal_conv/2, &Layers.causal_conv_step(&1, Axon.input("window"), &2)] do
          assert_raise ArgumentError, "expected size to be a positive integer, got: 0", fn ->
            layer.(Axon.input("x"), size: 0)
          end
        end
      end

      test "a window that is not as long as the kernel" do
        {_y, window} = Layers.causal_conv_step(Axon.input("x"), Axon.input("window"), size: 4)
        {init, predict} = Axon.build(window)

        [right, short, long] =
          for size <- [4, 3, 5], do: %{"x" => of(1.0, {1, 6}), "window" => of(0.5, {1, size, 6})}

        parameters = init.(right, Axon.ModelState.empty())
        assert Nx.shape(predict.(parameters, right)) == {1, 4, 6}

        for {inputs, size} <- [{short, 3}, {long, 5}] do
          error = catch_error(predict.(parameters, inputs))
          assert Exception.message(error) =~ "expected window to have shape {1, 4, 6}, got: {1, #{size}, 6}"
        end
      end

      defp of(number, shape), do: Nx.broadcast(Nx.tensor(number, type: :f32), shape)

      test "options that are no keywords" do
        for call <- [
              fn opts -> Layers.selective_scan(nodes([:x, :dt, :b, :c]), opts) end,
              fn opts -> Layers.causal_conv(Axon.input("x"), opts) end
            ] do
          assert_raise ArgumentError, "expected options to be a keyword list, got: %{}", fn -> call.(%{}) end
        end
      end

      test "inputs that are not there, or are no nodes" do
        for {inputs, message} <- [
              {nodes([:x, :dt, :c]), "expected inputs to have :b, :state, got: :c, :dt, :x"},
              {%{nodes([:x, :dt, :b, :c, :state]) | dt: 1}, "expected dt to be a node of Axon, got: 1"},
              {[], "expected inputs to be a map of nodes, got: []"}
            ] do
          assert_raise ArgumentError, message, fn -> Layers.selective_scan_step(inputs) end
        end

        for {call, message} <- [
              {fn -> Layers.causal_conv(3) end, "expected x to be a node of Axon, got: 3"},
              {fn -> Layers.causal_conv_step(nil, Axon.input("x")) end,
               "expected x to be a node of Axon, got: nil"},
              {fn -> Layers.causal_conv_step(Axon.input("x"), :w) end,
               "expected window to be a node of Axon, got: :w"}
            ] do
          assert_raise ArgumentError, message, call
        end
      end

      test "nodes of shapes that no convolution has" do
        init = fn model, templates ->
          model |> Axon.build() |> elem(0) |> then(& &1.(templates, Axon.ModelState.empty()))
        end

        [x, window] = for name <- ["x", "window"], do: Axon.input(name)
        {step, _window} = Layers.causal_conv_step(x, window)

        for {model, shape, words} <- [
              {Layers.causal_conv(x), {2, 6}, "expected x to have shape {batch, seq, channels}, got: {2, 6}"},
              {Layers.causal_conv(x), {2, 3, 7, 6},
               "expected x to have shape {batch, seq, channels}, got: {2, 3, 7, 6}"},
              {Layers.causal_conv(x), {}, "an axis of channels or states, the last, got: shape {}"},
              {step, {2, 7, 6}, "expected x to have shape {batch, channels}, got: {2, 7, 6}"}
            ] do
          templates = %{"x" => Nx.template(shape, :f32), "window" => Nx.template({2, 4, 6}, :f32)}
          templates = if model == step, do: templates, else: Map.take(templates, ["x"])
          error = catch_error(init.(model, templates))
          assert Exception.message(error) =~ words
        end
      end

      test "what a step refuses, for a step alone" do
        inputs = nodes([:x, :dt, :b, :c])

        for {opts, words} <- [
              {[reverse: true], "expected reverse to be false in a step, got: true"},
              {[bidirectional: true], "expected bidirectional to be false in a step, got: true"},
              {[method: :poly], ~r/expected method to be causal in a step .*, got: :poly/}
            ] do
          assert %Axon{} = Layers.selective_scan(inputs, opts)
          step = fn -> Layers.selective_scan_step(Map.put(inputs, :state, Axon.input("state")), opts) end
          assert_raise ArgumentError, words, step
        end
      end

      test "tensors and what is unknown among the options" do
        for {opts, words} <- [
              {[d: Nx.tensor([1.0])], ~r/expected options to be among .*, got: :d$/},
              {[initial_state: Nx.tensor([1.0])], ~r/expected options to be among .*, got: :initial_state/},
              {[methods: :foh], ~r/expected options to be among .*:method, .*, got: :methods/},
              {[method: :zho], ~r/expected method to be one of :zoh, .*, got: :zho/},
              {[dt_limit: 1], ~r/expected dt_limit to be {min, max}, two numbers, .*, got: 1/},
              {[dt_bias: Nx.tensor([1.0])], ~r/expected dt_bias to be a boolean, got: #Nx.Tensor/},
              {[skip: nil], ~r/expected skip to be a boolean, got: nil/}
            ] do
          assert_raise ArgumentError, words, fn -> Layers.selective_scan(nodes([:x, :dt, :b, :c]), opts) end
        end
      end
    end
  end
end
