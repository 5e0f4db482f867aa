if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.MambaTest do
    # Models of Axon over the native scan: weights of mamba_ssm, checkpoints of ExPhil's names, training.
    use ExUnit.Case, async: true
    doctest ExPhil.Native.Mamba

    # Seconds by themselves, and more than ExUnit's minute where others want the same cores.
    @moduletag timeout: 600_000

    alias ExPhil.Native.{Mamba, Tensor}

    @digits Path.expand("../../../examples/data/digits_mamba.safetensors", __DIR__)

    defp close!(got, wanted, tolerance) do
      assert Nx.shape(got) == Nx.shape(wanted)
      assert got |> Nx.subtract(wanted) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() < tolerance
    end

    describe "a model trained with mamba_ssm's block in PyTorch" do
      defp logits(count) do
        tensors = Tensor.load_safetensors(@digits)
        [images, logits, labels] = for name <- ~w(images logits labels), do: Tensor.to_nx(tensors["test.#{name}"])
        pixels = images[0..(count - 1)] |> Nx.divide(16) |> Nx.new_axis(2)

        model =
          [embed_size: 1, hidden_size: 64, window_size: 64, block: :mamba_ssm]
          |> Mamba.build()
          |> Axon.dense(10, name: "head")

        {init, predict} = Axon.build(model)
        parameters = init.(Nx.to_template(pixels), Axon.ModelState.new(Mamba.load_safetensors(@digits)))
        {predict.(parameters, pixels), logits[0..(count - 1)], labels[0..(count - 1)]}
      end

      test "gives its logits" do
        {got, wanted, _labels} = logits(3)
        close!(got, wanted, 1.0e-4)
      end

      # Minutes, in Nx's own backend.
      @tag :slow
      @tag timeout: :infinity
      test "gives the logits and the accuracy of all images that were held out" do
        {got, wanted, labels} = logits(360)
        close!(got, wanted, 1.0e-4)
        assert got |> Nx.argmax(axis: 1) |> Nx.equal(labels) |> Nx.sum() |> Nx.to_number() == 342
      end

      test "is told from another file" do
        assert_raise ArgumentError, ~r/to hold layers of a Mamba/, fn ->
          Mamba.load_safetensors(Path.expand("../../data/golden.safetensors", __DIR__))
        end
      end
    end

    describe "a model of language" do
      @describetag :tmp_dir

      # One layer that adds nothing, four wide, for three tokens.
      @layer %{
        "norm.weight" => Nx.broadcast(1.0, {4}),
        "mixer.in_proj.weight" => Nx.broadcast(0.1, {16, 4}),
        "mixer.conv1d.weight" => Nx.broadcast(0.1, {8, 1, 4}),
        "mixer.conv1d.bias" => Nx.broadcast(0.1, {8}),
        "mixer.x_proj.weight" => Nx.broadcast(0.1, {5, 8}),
        "mixer.dt_proj.weight" => Nx.broadcast(0.1, {8, 1}),
        "mixer.dt_proj.bias" => Nx.broadcast(0.1, {8}),
        "mixer.A_log" => Nx.broadcast(0.1, {8, 2}),
        "mixer.D" => Nx.broadcast(1.0, {8}),
        "mixer.out_proj.weight" => Nx.broadcast(0.0, {4, 8})
      }
      @table Nx.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 2.0, 1.0], [0.5, 3.0, -2.0, 1.0]])
      @head Nx.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 3.0, 1.0]])

      defp file(dir, others, layer \\ @layer) do
        of_layer = for {name, tensor} <- layer, into: %{}, do: {"backbone.layers.0." <> name, tensor}
        write(dir, of_layer |> Map.put("backbone.norm_f.weight", Nx.broadcast(1.0, {4})) |> Map.merge(others))
      end

      defp write(dir, tensors, name \\ "model.safetensors") do
        {entries, data} =
          Enum.map_reduce(tensors, <<>>, fn {name, tensor}, data ->
            all = data <> Nx.to_binary(tensor)
            axes = tensor |> Nx.shape() |> Tuple.to_list() |> Enum.join(",")
            ends = "#{byte_size(data)},#{byte_size(all)}"
            {~s("#{name}":{"dtype":"#{dtype(tensor)}","shape":[#{axes}],"data_offsets":[#{ends}]}), all}
          end)

        header = "{" <> Enum.join(entries, ",") <> "}"
        path = Path.join(dir, name)
        File.write!(path, [<<byte_size(header)::64-little>>, header, data])
        path
      end

      defp dtype(tensor) do
        {class, bits} = Nx.type(tensor)
        %{f: "F", bf: "BF", s: "I", u: "U"}[class] <> "#{bits}"
      end

      # The logits after token 2, of the layer that adds nothing.
      defp wanted(head) do
        row = @table[2]
        row |> Nx.divide(Nx.sqrt(Nx.mean(Nx.pow(row, 2)))) |> Nx.dot(Nx.transpose(head)) |> Nx.new_axis(0)
      end

      test "is read by the names of mamba_ssm and of Hugging Face, its head tied or not", %{tmp_dir: dir} do
        {init, predict} =
          [embed_size: 3, hidden_size: 4, state_size: 2, num_layers: 1, window_size: nil, block: :mamba_ssm]
          |> Mamba.build()
          |> Axon.dense(3, name: "head", use_bias: false)
          |> Axon.build()

        frames = Nx.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])

        for {others, head} <- [
              {%{"backbone.embedding.weight" => @table, "lm_head.weight" => @head}, @head},
              {%{"backbone.embeddings.weight" => @table, "lm_head.weight" => @head}, @head},
              {%{"backbone.embeddings.weight" => @table}, @table}
            ] do
          loaded = dir |> file(others) |> Mamba.load_safetensors()
          parameters = init.(Nx.to_template(frames), Axon.ModelState.new(loaded))
          close!(predict.(parameters, frames), wanted(head), 1.0e-4)
        end
      end

      test "has all parameters, so that it runs as it is", %{tmp_dir: dir} do
        layer = Map.delete(@layer, "mixer.conv1d.bias")
        loaded = dir |> file(%{"backbone.embeddings.weight" => @table}, layer) |> Mamba.load_safetensors()
        assert loaded["input_projection"]["bias"] == Nx.broadcast(0.0, {4})
        assert loaded["mamba_block_1_conv_dw_conv"]["bias"] == Nx.broadcast(0.0, {8})

        opts = [embed_size: 3, hidden_size: 4, state_size: 2, num_layers: 1, block: :mamba_ssm]
        {_init, predict} = Axon.build(Mamba.build_step(opts))
        inputs = opts |> Mamba.initial_state() |> Map.put("frame", Nx.tensor([[0.0, 0.0, 1.0]]))
        assert {output, _state} = predict.(Axon.ModelState.new(loaded), inputs)
        assert Nx.shape(output) == {1, 4}
      end

      test "may be in several files", %{tmp_dir: dir} do
        whole = file(dir, %{"backbone.embeddings.weight" => @table, "lm_head.weight" => @head})
        tensors = for {name, tensor} <- Tensor.load_safetensors(whole), into: %{}, do: {name, Tensor.to_nx(tensor)}
        {first, second} = Map.split(tensors, tensors |> Map.keys() |> Enum.take_every(2))

        paths =
          for {part, name} <- [{first, "1.safetensors"}, {second, "2.safetensors"}], do: write(dir, part, name)

        assert Mamba.load_safetensors(paths) == Mamba.load_safetensors(whole)
        assert_raise ArgumentError, ~r/a whole model/, fn -> Mamba.load_safetensors(tl(paths)) end
      end

      test "is refused where a weight is there twice", %{tmp_dir: dir} do
        norm = Nx.broadcast(1.0, {4})

        for {others, in_another, twice} <- [
              {%{"layers.0.norm.weight" => norm}, %{}, "layers.0.norm.weight"},
              {%{"lm_head.weight" => @head, "head.weight" => @head}, %{}, "head.weight"},
              {%{}, %{"backbone.norm_f.weight" => norm}, "norm_f.weight"},
              {%{}, %{"layers.0.mixer.D" => @layer["mixer.D"]}, "layers.0.mixer.D"}
            ] do
          paths = [file(dir, others), write(dir, in_another, "2.safetensors")]
          words = "expected #{Enum.join(paths, ", ")} to hold every weight once, got: #{twice} twice"
          assert_raise ArgumentError, words, fn -> Mamba.load_safetensors(paths) end
        end

        # What is no weight of the model is left, however often it is there.
        epoch = %{"epoch" => Nx.u8(3)}
        assert %{} = Mamba.load_safetensors([file(dir, epoch), write(dir, epoch, "2.safetensors")])
      end

      test "has weights of floating point", %{tmp_dir: dir} do
        for type <- [:f16, :bf16, :f64] do
          layer = Map.new(@layer, fn {name, tensor} -> {name, Nx.as_type(tensor, type)} end)
          loaded = dir |> file(%{}, layer) |> Mamba.load_safetensors()
          assert Nx.type(loaded["mamba_block_1_in_proj"]["kernel"]) == Nx.type(Nx.tensor(0, type: type))
        end

        for {name, type} <- [{"layers.0.mixer.in_proj.weight", {:u, 8}}, {"embedding.weight", {:s, 8}}] do
          tensors = Map.new(@layer, fn {name, tensor} -> {"layers.0." <> name, tensor} end)
          tensors = Map.merge(tensors, %{"norm_f.weight" => Nx.broadcast(1.0, {4}), "embedding.weight" => @table})
          path = write(dir, Map.update!(tensors, name, &Nx.as_type(&1, type)))
          words = "expected #{name} to have a type of floating point, got: #{inspect(type)}"
          assert_raise ArgumentError, words, fn -> Mamba.load_safetensors(path) end
        end
      end

      test "is refused where it is not whole", %{tmp_dir: dir} do
        a_later_one = %{"backbone.layers.2.mixer.D" => Nx.broadcast(1.0, {8})}
        a_far_one = %{"backbone.layers.#{2 ** 60}.mixer.D" => Nx.broadcast(1.0, {8})}
        without_norm = Map.new(@layer, fn {name, tensor} -> {"layers.0." <> name, tensor} end)

        for {write, words} <- [
              {fn -> file(dir, %{}, Map.delete(@layer, "mixer.in_proj.weight")) end,
               "a whole model, got none of: layers.0.mixer.in_proj.weight"},
              {fn -> file(dir, a_later_one) end, "layers.1.mixer.A_log, layers.1.mixer.D, .* and 14 more"},
              {fn -> file(dir, a_far_one) end, "layers.1.mixer.A_log, layers.1.mixer.D, .* and 14 more"},
              {fn -> write(dir, without_norm) end, "got none of: norm_f.weight"},
              {fn -> write(dir, %{"norm_f.weight" => Nx.broadcast(1.0, {4})}) end, "to hold layers of a Mamba"}
            ] do
          path = write.()
          assert_raise ArgumentError, ~r/#{words}/, fn -> Mamba.load_safetensors(path) end
        end

        assert %{} = dir |> file(%{}, Map.delete(@layer, "mixer.conv1d.bias")) |> Mamba.load_safetensors()
      end

      test "is refused where its layers have what none here has", %{tmp_dir: dir} do
        for name <- ["mixer.in_proj.bias", "mixer.norm.weight"] do
          path = file(dir, %{}, Map.put(@layer, name, Nx.broadcast(0.0, {16})))
          words = ~r/expected every layer in #{path} to have mixer.A_log, .*, got: layers.0.#{name}/
          assert_raise ArgumentError, words, fn -> Mamba.load_safetensors(path) end
        end

        for number <- ["-1", "00", "01", "x", ""] do
          path = file(dir, %{"backbone.layers.#{number}.mixer.D" => Nx.broadcast(1.0, {8})})
          words = ~r/expected every layer in .*, got: layers.#{number}.mixer.D/
          assert_raise ArgumentError, words, fn -> Mamba.load_safetensors(path) end
        end
      end

      test "is not looked for under what is no path", %{tmp_dir: dir} do
        for path <- [nil, :model, [], [nil], ["model", 1], ["model" | "other"]] do
          words = "expected the path of a safetensors file, or a list of paths, got: #{inspect(path)}"
          assert_raise ArgumentError, words, fn -> Mamba.load_safetensors(path) end
        end

        assert %{} = dir |> file(%{}) |> String.to_charlist() |> Mamba.load_safetensors()
      end
    end

    describe "ExPhil's block" do
      # As ExPhil and Edifice compute it: the input has the mean of the step sizes of all channels.
      defp exphil(x, b, c, dt) do
        state = Nx.axis_size(b, 2)
        dt = Nx.clip(dt, 0.001, 0.1)
        decay = dt |> Nx.new_axis(3) |> Nx.multiply(Nx.negate(Nx.add(Nx.iota({state}), 1))) |> Nx.exp()
        gain = dt |> Nx.mean(axes: [2], keep_axes: true) |> Nx.new_axis(3) |> Nx.multiply(Nx.new_axis(b, 2))
        input = Nx.multiply(gain, Nx.new_axis(x, 3))

        {states, _} =
          Enum.map_reduce(0..(Nx.axis_size(x, 1) - 1), Nx.broadcast(0.0, Nx.shape(input[[.., 0]])), fn at, state ->
            state = decay[[.., at]] |> Nx.multiply(state) |> Nx.add(input[[.., at]])
            {state, state}
          end)

        states |> Nx.stack(axis: 1) |> Nx.multiply(Nx.new_axis(c, 2)) |> Nx.sum(axes: [3])
      end

      test "has the scan of theirs" do
        %{"x" => x, "b" => b, "c" => c, "dt" => dt} = inputs()
        close!(Mamba.exphil_scan(x, b, c, dt), exphil(x, b, c, dt), 1.0e-5)
      end

      test "has it in f64, too" do
        [x, b, c, dt] = for name <- ["x", "b", "c", "dt"], do: Nx.as_type(inputs()[name], :f64)
        got = Mamba.exphil_scan(x, b, c, dt)
        assert Nx.type(got) == {:f, 64}
        close!(got, exphil(x, b, c, dt), 1.0e-12)
      end

      test "scans with the options that it is given" do
        given = for name <- ["x", "b", "c", "dt"], do: inputs()[name]
        turned = for tensor <- given, do: Nx.reverse(tensor, axes: [1])
        wanted = turned |> then(&apply(Mamba, :exphil_scan, &1)) |> Nx.reverse(axes: [1])
        close!(apply(Mamba, :exphil_scan, given ++ [[scan: [reverse: true]]]), wanted, 1.0e-6)
      end

      test "is told what is no tensor, and no shape that fits" do
        [x, b, c, dt] = for name <- ["x", "b", "c", "dt"], do: inputs()[name]

        for {given, words} <- [
              {[nil, b, c, dt], "expected x to be an Nx.Tensor, got: nil"},
              {[x, [1.0], c, dt], "expected b to be an Nx.Tensor, got: [1.0]"},
              {[x, b, Tensor.zeros({1}), dt], "expected c to be an Nx.Tensor, got: #ExPhil"},
              {[x, b, c, 0.1], "expected dt to be an Nx.Tensor, got: 0.1"},
              {[x, b, c, dt[[0]]], "expected dt to have the shape of x, {2, 9, 6}, got: {9, 6}"},
              {[x, Nx.tensor(1.0), c, dt], "expected b to have an axis of channels or states, the last, got: {}"},
              {[x, b, c, %{dt | data: nil}], "expected dt to have data that a backend of Nx holds"}
            ] do
          error = assert_raise ArgumentError, fn -> apply(Mamba, :exphil_scan, given) end
          assert error.message =~ words
        end

        frames = for tensor <- [x, b, c, dt], do: tensor[[.., 0]]

        assert_raise ArgumentError, "expected state to be an Nx.Tensor, got: nil", fn ->
          apply(Mamba, :exphil_step, [nil | frames])
        end
      end

      # The layer of the scan as their models have it, over inputs that come as they are.
      defp layer(operation, op_name) do
        nodes = for {name, width} <- [x: 6, b: 4, c: 4, dt: 6], do: Axon.input("#{name}", shape: {nil, 9, width})
        Axon.layer(operation, nodes, name: "ssm", op_name: op_name, state_size: 4, hidden_size: 6)
      end

      defp inputs do
        key = Nx.Random.key(6)
        {x, key} = Nx.Random.normal(key, shape: {2, 9, 6})
        {b, key} = Nx.Random.normal(key, shape: {2, 9, 4})
        {c, key} = Nx.Random.normal(key, shape: {2, 9, 4})
        {dt, _key} = Nx.Random.uniform(key, 0.0, 0.15, shape: {2, 9, 6})
        %{"x" => x, "b" => b, "c" => c, "dt" => dt}
      end

      test "can be exchanged for theirs in a model" do
        theirs = layer(fn x, b, c, dt, _opts -> exphil(x, b, c, dt) end, :parallel_scan_ssm)

        ours =
          Axon.map_nodes(theirs, fn
            %Axon.Node{op_name: :parallel_scan_ssm} = layer -> %{layer | op: &Mamba.exphil_scan/5}
            layer -> layer
          end)

        [got, wanted] = for model <- [ours, theirs], do: Axon.predict(model, Axon.ModelState.empty(), inputs())
        close!(got, wanted, 1.0e-5)
      end

      test "is called as it is by their MambaNIF" do
        # What the layer of that module does, where only the scan is ours.
        nif = fn x, b, c, dt, opts ->
          a = Nx.iota({opts[:hidden_size], opts[:state_size]}) |> Nx.remainder(opts[:state_size])
          a = a |> Nx.add(1.0) |> Nx.negate()
          ExPhil.Native.SelectiveScan.scan(x, Nx.clip(dt, 0.001, 0.1), a, b, c)
        end

        %{"x" => x, "b" => b, "c" => c, "dt" => dt} = inputs()
        got = Axon.predict(layer(nif, :nif_selective_scan), Axon.ModelState.empty(), inputs())
        # Its kernel gives every channel its own step size, so x is scaled to make up for the mean.
        steps = Nx.clip(dt, 0.001, 0.1)
        x = x |> Nx.multiply(steps) |> Nx.divide(Nx.mean(steps, axes: [2], keep_axes: true))
        close!(got, exphil(x, b, c, dt), 1.0e-5)
      end

      test "has the layers and parameters of theirs, so that a checkpoint loads in either" do
        assert shapes(hidden_size: 32) == %{
                 "input_projection" => %{"kernel" => {5, 32}, "bias" => {32}},
                 "mamba_block_1_norm" => %{"gamma" => {32}, "beta" => {32}},
                 "mamba_block_1_in_proj" => %{"kernel" => {32, 128}, "bias" => {128}},
                 "mamba_block_1_conv_dw_conv" => %{"kernel" => {4, 1, 64}, "bias" => {64}},
                 "mamba_block_1_ssm_bc_proj" => %{"kernel" => {64, 8}, "bias" => {8}},
                 "mamba_block_1_ssm_dt_rank" => %{"kernel" => {64, 2}, "bias" => {2}},
                 "mamba_block_1_ssm_dt_proj" => %{"kernel" => {2, 64}, "bias" => {64}},
                 "mamba_block_1_out_proj" => %{"kernel" => {64, 32}, "bias" => {32}}
               }
      end
    end

    # Of the parameters, by their layers.
    defp shapes(opts) do
      {init, _predict} = Axon.build(Mamba.build([embed_size: 5, state_size: 4, num_layers: 1, window: 6] ++ opts))
      %{data: data} = init.(Nx.template({1, 6, 5}, :f32), Axon.ModelState.empty())
      Map.new(data, fn {layer, each} -> {layer, Map.new(each, fn {name, t} -> {name, Nx.shape(t)} end)} end)
    end

    test "the rank of dt is the sixteenth part of the width, rounded down in one block and up in the other" do
      for {block, hidden, layer, kernel} <- [
            {:exphil, 24, "ssm_dt_rank", {48, 1}},
            {:exphil, 8, "ssm_dt_rank", {16, 1}},
            {:exphil, 24, "ssm_dt_proj", {1, 48}},
            {:mamba_ssm, 24, "x_proj", {48, 2 + 2 * 4}},
            {:mamba_ssm, 24, "dt_proj", {2, 48}},
            {:mamba_ssm, 32, "dt_proj", {2, 64}}
          ] do
        of_model = shapes(block: block, hidden_size: hidden)
        assert {block, hidden, of_model["mamba_block_1_#{layer}"]["kernel"]} == {block, hidden, kernel}
      end
    end

    test "inputs are of any number of games, of the sizes that are asked for" do
      opts = [embed_size: 5, hidden_size: 8, state_size: 3, expand_factor: 3, conv_size: 2, num_layers: 1]

      for block <- [:exphil, :mamba_ssm] do
        assert Axon.get_inputs(Mamba.build([block: block, window: 7] ++ opts)) == %{
                 "state_sequence" => {nil, 7, 5}
               }

        assert Axon.get_inputs(Mamba.build_step([block: block] ++ opts)) == %{
                 "frame" => {nil, 5},
                 "mamba_block_1_conv_state" => {nil, 2, 24},
                 "mamba_block_1_ssm_state" => {nil, 24, 3}
               }
      end
    end

    # The layers of dropout, each with what it follows.
    defp dropouts(model) do
      name = fn %{name: name, op_name: operation} -> name.(operation, %{}) end

      for {_id, %{op_name: :dropout, parent: [parent]} = layer} <- model.nodes, into: %{} do
        {name.(layer), name.(model.nodes[parent])}
      end
    end

    test "dropout is between blocks, and only where it is asked for" do
      opts = [embed_size: 5, hidden_size: 8, num_layers: 3]

      for block <- [:exphil, :mamba_ssm], opts = [{:block, block} | opts] do
        between = %{"dropout_1" => "residual_1", "dropout_2" => "residual_2"}
        assert dropouts(Mamba.build([dropout: 0.1] ++ opts)) == between
        assert dropouts(Mamba.build(opts)) == %{}
        assert dropouts(Mamba.build_step([dropout: 0.1] ++ opts)) == %{}
      end
    end

    describe "the options" do
      defp window(opts) do
        model = Mamba.build([embed_size: 5, hidden_size: 4, state_size: 2, num_layers: 1] ++ opts)
        {_batch, window, _features} = Axon.get_inputs(model)["state_sequence"]
        window
      end

      test "are those of ExPhil and of Edifice, by every name that they have there" do
        assert window([]) == 60
        for name <- [:window_size, :window, :seq_len], do: assert(window([{name, 7}]) == 7)
        for name <- [:window_size, :window], do: assert(window([{name, 9}, {:seq_len, 7}]) == 7)
        for name <- [:window_size, :window, :seq_len], do: assert(window([{name, nil}]) == nil)

        for opts <- [[embed_dim: 5], [embed_dim: 5, embed_size: 5]] do
          assert {nil, 60, 5} = Axon.get_inputs(Mamba.build(opts))["state_sequence"]
        end
      end

      test "have the defaults that are written there" do
        state = Mamba.initial_state(embed_size: 5)

        assert Map.new(state, fn {name, tensor} -> {name, Nx.shape(tensor)} end) == %{
                 "mamba_block_1_conv_state" => {1, 4, 512},
                 "mamba_block_1_ssm_state" => {1, 512, 16},
                 "mamba_block_2_conv_state" => {1, 4, 512},
                 "mamba_block_2_ssm_state" => {1, 512, 16}
               }
      end

      test "are refused where they make no sense, by their names" do
        for {opts, message} <- [
              {[hidden_size: 0], "expected hidden_size to be a positive integer, got: 0"},
              {[num_layers: 1.5], "expected num_layers to be a positive integer, got: 1.5"},
              {[window: -1], "expected window_size to be a positive integer, got: -1"},
              {[embed_dim: 6], "expected embed_dim to be embed_size, 5, where both are given, got: 6"},
              {[dropout: 1], "expected dropout to be a rate from 0 to below 1, got: 1"},
              {[scan: :foh], "expected scan to be a keyword list, got: :foh"}
            ] do
          for build <- [&Mamba.build/1, &Mamba.build_step/1, &Mamba.initial_state/1] do
            assert_raise ArgumentError, message, fn -> build.([embed_size: 5] ++ opts) end
          end
        end

        assert_raise ArgumentError, ~r/expected options to be among :block, .*, got: :layers/, fn ->
          Mamba.build(embed_size: 5, layers: 3)
        end

        for build <- [&Mamba.build/1, &Mamba.build_step/1, &Mamba.initial_state/1] do
          assert_raise ArgumentError, "expected options to be a keyword list, got: %{embed_size: 5}", fn ->
            build.(%{embed_size: 5})
          end
        end

        for head <- [:dense, fn _, _ -> nil end] do
          assert_raise ArgumentError, ~r/^expected head to be a function of one node, got: /, fn ->
            Mamba.build_step(embed_size: 5, head: head)
          end
        end
      end
    end

    test "frame by frame, a model gives what it gives for all frames up to each" do
      for block <- [:exphil, :mamba_ssm],
          own <- [[conv_size: 1], [conv_size: 4], [scan: [method: :bilinear, dt_limit: {0.5, 1.0}]]] do
        opts = [embed_size: 5, hidden_size: 8, state_size: 3, block: block] ++ own
        {init, predict} = Axon.build(Mamba.build([window: nil] ++ opts), seed: 0)
        {x, _key} = Nx.Random.normal(Nx.Random.key(4), shape: {2, 6, 5})
        parameters = init.(Nx.to_template(x), Axon.ModelState.empty())
        {_init, step} = Axon.build(Mamba.build_step(opts))

        Enum.reduce(0..5, Mamba.initial_state(opts, 2), fn at, state ->
          {got, state} = step.(parameters, Map.put(state, "frame", x[[.., at]]))
          close!(got, predict.(parameters, x[[.., 0..at]]), 1.0e-5)
          state
        end)
      end
    end

    test "each option of the scan changes what a model gives" do
      for block <- [:exphil, :mamba_ssm] do
        opts = [embed_size: 5, hidden_size: 8, state_size: 3, block: block, window: 6]
        {init, predict} = Axon.build(Mamba.build(opts), seed: 0)
        {x, _key} = Nx.Random.normal(Nx.Random.key(4), shape: {2, 6, 5})
        parameters = init.(Nx.to_template(x), Axon.ModelState.empty())
        usual = predict.(parameters, x)

        for scan <- [[method: :bilinear], [dt_limit: {0.5, 1.0}], [dt_softplus: block == :exphil], [reverse: true]] do
          got = Axon.predict(Mamba.build([scan: scan] ++ opts), parameters, x)

          assert {scan, got |> Nx.subtract(usual) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number()} >
                   {scan, 1.0e-5}
        end
      end
    end

    test "options of the scan are refused when a model is built" do
      for block <- [:exphil, :mamba_ssm],
          {scan, words} <- [
            {[foo: 1], "expected options of scan to be among"},
            {[name: "x"], "got: :name"},
            {[d: Nx.tensor([1.0])], "got: :d"},
            {[initial_state: 1], "got: :initial_state"},
            {[method: :zho], "expected method to be one of :zoh, "},
            {[coefficients: :taylor], "expected coefficients to be :exact for method :zoh"},
            {[dt_softplus: 1], "expected dt_softplus to be a boolean, got: 1"},
            {[backend: :tpu], "expected backend to be one of"}
          ],
          build <- [&Mamba.build/1, &Mamba.build_step/1] do
        error = assert_raise ArgumentError, fn -> build.(embed_size: 5, block: block, scan: scan) end
        assert error.message =~ words
      end

      assert %Axon{} = Mamba.build(embed_size: 5, block: :mamba_ssm, scan: [skip: false, method: :foh])
      assert_raise ArgumentError, ~r/got: :skip/, fn -> Mamba.build(embed_size: 5, scan: [skip: false]) end
    end

    test "a head gives nodes" do
      for wrong <- [3, nil, {Axon.input("x"), 3}, %{a: :b}] do
        words = "expected head to give a node, got: #{inspect(wrong)}"
        assert_raise ArgumentError, words, fn -> Mamba.build_step(embed_size: 5, head: fn _ -> wrong end) end
      end

      two = fn node -> %{buttons: Axon.dense(node, 3), stick: {Axon.dense(node, 2), node}} end
      assert %Axon{} = Mamba.build_step(embed_size: 5, head: two)
    end

    test "a state is of one game or more" do
      for batch <- [0, -1, nil, 1.5, "2"] do
        words = "expected batch to be a positive integer, got: #{inspect(batch)}"
        assert_raise ArgumentError, words, fn -> Mamba.initial_state([embed_size: 5], batch) end
      end
    end

    test "a step is causal" do
      for block <- [:exphil, :mamba_ssm],
          {scan, words} <- [
            {[bidirectional: true], "expected bidirectional to be false in a step, got: true"},
            {[reverse: true], "expected reverse to be false in a step, got: true"},
            {[method: :poly], ~r/expected method to be causal in a step .*, got: :poly/}
          ] do
        opts = [embed_size: 5, hidden_size: 8, state_size: 3, block: block, scan: scan]
        assert_raise ArgumentError, words, fn -> Mamba.build_step(opts) end
      end

      assert %Axon{} = Mamba.build_step(embed_size: 5, scan: [method: :poly, bidirectional: false])
    end

    test "a state that no memory holds is refused" do
      no_memory = fn -> Mamba.initial_state([embed_size: 3], 1_000_000_000) end
      assert_raise ExPhil.Native.Error, ~r/out of memory/, no_memory
    end

    test "under mixed precision the scan keeps its parameters and states in f32" do
      policy = Axon.MixedPrecision.create_policy(compute: {:bf, 16}, output: {:bf, 16})

      for block <- [:exphil, :mamba_ssm] do
        opts = [embed_size: 5, hidden_size: 8, state_size: 3, block: block, window: 6]
        {x, _key} = Nx.Random.normal(Nx.Random.key(5), shape: {2, 6, 5})
        {init, predict} = Axon.build(Mamba.build(opts), seed: 0)
        parameters = init.(Nx.to_template(x), Axon.ModelState.empty())
        {_init, mixed} = opts |> Mamba.build() |> Axon.MixedPrecision.apply_policy(policy) |> Axon.build()
        got = mixed.(parameters, x)
        assert Nx.type(got) == {:bf, 16}
        # Rounding of numbers up to 4 to the 8 bits of bf16, a few times in a row.
        close!(Nx.as_type(got, :f32), predict.(parameters, x), 0.1)
      end
    end

    test "under mixed precision a model goes frame by frame, too" do
      policy = Axon.MixedPrecision.create_policy(compute: {:bf, 16}, output: {:bf, 16})

      for block <- [:exphil, :mamba_ssm] do
        opts = [embed_size: 5, hidden_size: 8, state_size: 3, block: block]
        {x, _key} = Nx.Random.normal(Nx.Random.key(5), shape: {2, 6, 5})
        {init, predict} = Axon.build(Mamba.build([window: 6] ++ opts), seed: 0)
        parameters = init.(Nx.to_template(x), Axon.ModelState.empty())

        {_init, step} = opts |> Mamba.build_step() |> Axon.MixedPrecision.apply_policy(policy) |> Axon.build()

        {got, _state} =
          Enum.reduce(0..5, {nil, Mamba.initial_state(opts, 2)}, fn at, {_got, state} ->
            step.(parameters, Map.put(state, "frame", x[[.., at]]))
          end)

        close!(Nx.as_type(got, :f32), predict.(parameters, x), 0.1)
      end
    end

    test "the convolution is Axon's" do
      key = Nx.Random.key(2)
      {x, key} = Nx.Random.normal(key, shape: {2, 7, 3})
      {kernel, key} = Nx.Random.normal(key, shape: {4, 1, 3})
      {bias, _key} = Nx.Random.normal(key, shape: {3})
      parameters = Axon.ModelState.new(%{"conv" => %{"kernel" => kernel, "bias" => bias}})
      input = Axon.input("x", shape: {nil, 7, 3})
      ours = ExPhil.Native.Layers.causal_conv(input, name: "conv")
      theirs = Axon.conv(input, 3, kernel_size: {4}, padding: [{3, 0}], feature_group_size: 3, name: "conv")
      [got, wanted] = for model <- [ours, theirs], do: Axon.predict(model, parameters, x)
      close!(got, wanted, 1.0e-5)
    end

    test "both blocks learn, by the gradients of the native scan" do
      key = Nx.Random.key(3)
      {x, _key} = Nx.Random.normal(key, shape: {16, 6, 4})
      # Whether the second frame of the first feature is positive: it has to be carried to the last.
      y = Nx.greater(x[[.., 1, 0]], 0) |> Nx.new_axis(1)

      # From logits: a sigmoid far from zero overflows in older Nx.
      loss = &Axon.Losses.binary_cross_entropy(&1, &2, from_logits: true, reduction: :mean)

      for block <- [:exphil, :mamba_ssm] do
        model =
          [
            embed_size: 4,
            hidden_size: 8,
            state_size: 4,
            num_layers: 2,
            window_size: 6,
            dropout: 0.01,
            block: block
          ]
          |> Mamba.build()
          |> Axon.dense(1)

        {init, _predict} = Axon.build(model, seed: 0)
        start = init.(Nx.to_template(x), Axon.ModelState.empty())

        trained =
          model
          |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 1.0e-2), log: 0)
          |> Axon.Loop.run(List.duplicate({x, y}, 30), start, epochs: 1)

        guessed = Axon.predict(model, trained, x) |> Nx.greater(0)
        assert {block, Nx.equal(guessed, y) |> Nx.mean() |> Nx.to_number()} > {block, 0.9}
      end
    end
  end
end
