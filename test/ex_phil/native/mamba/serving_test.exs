if Code.ensure_loaded?(Axon) and Code.ensure_loaded?(ExPhil.Native.Mamba.Serving) do
  defmodule ExPhil.Native.Mamba.ServingTest.Compiler do
    # Nx's own, which tells the process `:test` what it compiles and what of it runs.
    @behaviour Nx.Defn.Compiler
    alias Nx.Defn.Evaluator

    @impl true
    def __compile__(key, vars, fun, opts) do
      {test, opts} = Keyword.pop!(opts, :test)
      [_parameters, %{"frame" => frame}] = vars
      games = Nx.axis_size(frame, 0)
      send(test, {:compiled, games, opts})
      compiled = Evaluator.__compile__(key, vars, fun, opts)

      fn inputs ->
        send(test, {:ran, games})
        compiled.(inputs)
      end
    end

    @impl true
    def __jit__(key, vars, fun, inputs, opts), do: __compile__(key, vars, fun, opts).(inputs)

    @impl true
    defdelegate __partitions_options__(opts), to: Evaluator

    @impl true
    defdelegate __to_backend__(opts), to: Evaluator
  end

  defmodule ExPhil.Native.Mamba.ServingTest.Elsewhere do
    # A backend whose tensors are not for another node.
    defstruct [:here]

    def backend_copy(%{data: %{here: tensor}}, Nx.BinaryBackend, _opts), do: tensor
  end

  defmodule ExPhil.Native.Mamba.ServingTest do
    # Many games in one serving, on one node and on two.
    use ExUnit.Case
    doctest ExPhil.Native.Mamba.Serving

    alias __MODULE__.{Compiler, Elsewhere}
    alias ExPhil.Native.Mamba

    @opts [embed_size: 5, hidden_size: 8, state_size: 3, num_layers: 2]
    @frames 6

    defp parameters(head \\ & &1) do
      {init, _predict} = @opts |> Mamba.build() |> head.() |> Axon.build(seed: 0)
      init.(Nx.template({1, 60, 5}, :f32), Axon.ModelState.empty())
    end

    # The first frame of so many games, all of them the same.
    defp first(games), do: {Nx.broadcast(0.5, {games, 5}), Mamba.initial_state(@opts, games)}

    # The frames of a game, other ones in every game.
    defp game(seed) do
      {x, _key} = Nx.Random.normal(Nx.Random.key(seed), shape: {1, @frames, 5})
      x
    end

    # What the model makes of the whole game.
    defp whole(parameters, x) do
      {_init, predict} = Axon.build(Mamba.build([window: nil] ++ @opts))
      predict.(parameters, x)
    end

    # And frame by frame, with the state that each answer brings.
    defp play(server, x) do
      Enum.reduce(0..(@frames - 1), {nil, Mamba.initial_state(@opts)}, fn at, {_output, state} ->
        Nx.Serving.batched_run(server, {x[[.., at]], state})
      end)
    end

    defp close!(got, wanted) do
      assert Nx.shape(got) == Nx.shape(wanted)
      assert got |> Nx.subtract(wanted) |> Nx.abs() |> Nx.reduce_max() |> Nx.to_number() < 1.0e-5
    end

    # The games in each batch that the serving makes of requests.
    defp sizes(serving, test) do
      %{serving | arg: fn options -> counted(serving.arg.(options), test) end}
    end

    defp counted(batched, test) do
      fn batch ->
        send(test, {:games, batch.size})
        batched.(batch)
      end
    end

    defp batches do
      receive do
        {:games, games} -> [games | batches()]
      after
        0 -> []
      end
    end

    test "games of many processes go on together, each with its own state" do
      parameters = parameters()
      # Four games wait for one another in every frame, so that they are one batch.
      serving = parameters |> Mamba.Serving.new([batch_size: 4, batch_timeout: 10_000] ++ @opts) |> sizes(self())
      start_supervised!({Nx.Serving, name: Games, serving: serving})

      outputs = 1..4 |> Enum.map(&Task.async(fn -> play(Games, game(&1)) end)) |> Task.await_many(60_000)
      for {{output, _state}, seed} <- Enum.zip(outputs, 1..4), do: close!(output, whole(parameters, game(seed)))
      assert batches() == List.duplicate(4, @frames)
    end

    test "a batch that is not full is computed for as many as there are" do
      parameters = parameters()

      start_supervised!(
        {Nx.Serving, name: Games, serving: Mamba.Serving.new(parameters, [batch_size: 5] ++ @opts)}
      )

      for games <- 1..5 do
        frames = Nx.concatenate(Enum.map(1..games, &game/1))
        {output, state} = Nx.Serving.batched_run(Games, {frames[[.., 0]], Mamba.initial_state(@opts, games)})
        close!(output, whole(parameters, frames[[.., 0..0]]))
        for {_name, tensor} <- state, do: assert(Nx.axis_size(tensor, 0) == games)
      end
    end

    test "is compiled for the powers of two up to its size, and that, and a batch runs in the least that holds it" do
      options = [compiler: Compiler, test: self(), garbage_collect: true]
      serving = Mamba.Serving.new(parameters(), [batch_size: 5, defn_options: options] ++ @opts)
      start_supervised!({Nx.Serving, name: Games, serving: serving})

      for size <- [1, 2, 4, 5] do
        assert_received {:compiled, ^size, opts}
        # And not the keys that Nx.Serving adds.
        assert opts == [garbage_collect: true]
      end

      refute_received {:compiled, _size, _opts}

      for {games, size} <- [{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 5}] do
        Nx.Serving.batched_run(Games, first(games))
        assert_received {:ran, ^size}
        refute_received {:ran, _size}
      end
    end

    test "takes as many games and waits for them as long as it is told, else 32 and a millisecond" do
      for {own, told} <- [
            {[], {32, [batch_timeout: 1]}},
            {[batch_size: 5, batch_timeout: 0], {5, [batch_timeout: 0]}}
          ] do
        serving = Mamba.Serving.new(parameters(), own ++ @opts)
        assert {serving.batch_size, serving.process_options} == told
      end
    end

    test "answers cross to another node in the backend that every node has" do
      tensor = Nx.tensor([1.0, 2.0])
      elsewhere = %{tensor | data: %Elsewhere{here: tensor}}
      answer = {elsewhere, %{"mamba_block_1_ssm_state" => elsewhere}}
      crossed = Mamba.Serving.new(parameters(), @opts).distributed_postprocessing.(answer)
      assert crossed == {tensor, %{"mamba_block_1_ssm_state" => tensor}}
    end

    test "gives what a head makes of the hidden state" do
      for {head, shapes} <- [
            {&Axon.dense(&1, 3, name: "head"), {2, 3}},
            {&Axon.nx(&1, fn hidden -> Nx.argmax(hidden, axis: 1) end), {2}},
            {&%{stick: &1, buttons: {Axon.dense(&1, 1, name: "head"), Axon.flatten(&1)}},
             %{stick: {2, 8}, buttons: {{2, 1}, {2, 8}}}}
          ] do
        trained = fn hidden -> hidden |> head.() |> then(&if(is_struct(&1), do: &1, else: Axon.container(&1))) end
        serving = trained |> parameters() |> Mamba.Serving.new([head: head, batch_size: 2] ++ @opts)
        {output, _state} = Nx.Serving.run(serving, first(2))
        assert shapes(output) == shapes
      end
    end

    defp shapes(%Nx.Tensor{shape: shape}), do: shape
    defp shapes(%{} = outputs), do: Map.new(outputs, fn {name, output} -> {name, shapes(output)} end)
    defp shapes({left, right}), do: {shapes(left), shapes(right)}

    test "a head that does not keep the axis of games is refused when the serving starts" do
      for {head, size, got} <- [
            {&Axon.nx(&1, fn hidden -> Nx.squeeze(hidden) end), 1, {8}},
            {&Axon.nx(&1, fn hidden -> Nx.argmax(hidden) end), 1, {}},
            {&Axon.nx(&1, fn hidden -> Nx.flatten(hidden) end), 1, {8}},
            {&Axon.nx(&1, fn _hidden -> 1.0 end), 1, {}},
            {&Axon.nx(&1, fn hidden -> Nx.new_axis(hidden, 0) end), 2, {1, 2, 8}},
            {fn _hidden -> Axon.constant(Nx.tensor([[1.0, 2.0]])) end, 2, {1, 2}},
            {&{&1, %{left: Axon.nx(&1, fn hidden -> Nx.transpose(hidden) end)}}, 1, {8, 1}}
          ] do
        serving = Mamba.Serving.new(parameters(), [head: head, batch_size: 3] ++ @opts)

        words =
          "expected head to keep the axis of games, the first, #{size} long in every output, got: #{inspect(got)}"

        assert {:error, reason} = start_supervised({Nx.Serving, name: Games, serving: serving})
        assert Exception.format_exit(reason) =~ words
      end
    end

    test "parameters in f64 give an output in f64 and a state that the next request takes" do
      parameters = parameters()
      double = Axon.ModelState.new(for {layer, own} <- parameters.data, into: %{}, do: {layer, as_f64(own)})

      start_supervised!({Nx.Serving, name: Games, serving: Mamba.Serving.new(double, [batch_size: 1] ++ @opts)})

      {output, state} = play(Games, game(1))
      assert Nx.type(output) == {:f, 64}
      for {_name, tensor} <- state, do: assert(Nx.type(tensor) == {:f, 32})
      close!(output, whole(parameters, game(1)))
    end

    defp as_f64(own), do: Map.new(own, fn {name, tensor} -> {name, Nx.as_type(tensor, :f64)} end)

    test "parameters that are none are refused" do
      for {wrong, got} <- [{nil, "nil"}, {[a: 1], "[a: 1]"}, {%{"a" => "b"}, ~S({"a", "b"})}] do
        error = assert_raise ArgumentError, fn -> Mamba.Serving.new(wrong, @opts) end
        assert error.message =~ ~r/expected parameters to be .*, got: #{Regex.escape(got)}/
      end
    end

    test "parameters that hold no numbers are refused by their names" do
      for {wrong, words} <- [
            {nil, "to be an Nx.Tensor, got: nil"},
            {"b", ~S(to be an Nx.Tensor, got: "b")},
            {Nx.template({5, 8}, :f32), "to hold numbers, got: #Nx.Tensor"},
            {Nx.Defn.debug_expr(&Nx.negate/1).(Nx.tensor([1.0])), "to hold numbers, got: #Nx.Tensor"},
            {%{Nx.tensor([1.0]) | shape: {2}}, "to hold 8 bytes, got: 4 bytes"}
          ],
          layers = %{"layer" => %{"of" => %{"kernel" => wrong}}},
          parameters <- [layers, Axon.ModelState.new(layers)] do
        error = assert_raise ArgumentError, fn -> Mamba.Serving.new(parameters, @opts) end
        assert error.message =~ ~s(expected parameter "kernel" "of" of layer "layer" ) <> words
      end
    end

    test "options of its own are refused where Nx would take them and fall later" do
      for {name, values, words} <- [
            {:batch_size, [nil, 0, 1.5, :many], "be a positive integer"},
            {:batch_timeout, [nil, -1, 1.5, :x], "be milliseconds, 0 or more"},
            {:defn_options, [nil, %{}], "be a keyword list"}
          ],
          value <- values do
        assert_raise ArgumentError, "expected #{name} to #{words}, got: #{inspect(value)}", fn ->
          Mamba.Serving.new(%{}, [{name, value} | @opts])
        end
      end

      assert_raise ArgumentError, "expected options to be a keyword list, got: %{}", fn ->
        Mamba.Serving.new(%{}, %{})
      end
    end

    test "a wrong request is told so, and the games go on" do
      start_supervised!(
        {Nx.Serving, name: Games, serving: Mamba.Serving.new(parameters(), [batch_size: 2] ++ @opts)}
      )

      state = Mamba.initial_state(@opts)
      frame = Nx.broadcast(0.5, {1, 5})
      [{name, tensor} | _] = Enum.to_list(state)

      for {request, message} <- [
            {frame, ~r/expected a request to be {frame, state}, a tensor and a map of tensors, got: /},
            {{Nx.broadcast(0.5, {1, 4}), state}, "expected frame to have shape {1, 5}, got: {1, 4}"},
            {{Nx.broadcast(0.5, {3, 5}), state},
             "expected frame to have shape {games, embed_size} with up to 2 games, got: {3, 5}"},
            {{Nx.as_type(frame, :bf16), state}, "expected frame to have type {:f, 32}, got: {:bf, 16}"},
            {{frame, Map.delete(state, name)}, ~r/expected the state to have \["mamba_block_1_conv_state", /},
            {{frame, Map.put(state, "frame", frame)},
             ~r/expected the state to have \["mamba_block_1_conv_state", .*"frame"/},
            {{frame, %{state | name => Nx.concatenate([tensor, tensor])}},
             "expected mamba_block_1_conv_state to have shape {1, 4, 16}, got: {2, 4, 16}"},
            {{%{frame | data: %Nx.BinaryBackend{state: <<1>>}}, state},
             "expected frame to hold 20 bytes, got: 1 bytes"},
            {{%{frame | data: nil}, state}, "expected frame to have data that a backend of Nx holds, got: nil"},
            {{frame, %{state | name => %{tensor | data: %Nx.BinaryBackend{state: <<>>}}}},
             "expected mamba_block_1_conv_state to hold 256 bytes, got: 0 bytes"},
            {{Nx.template({1, 5}, :f32), state}, ~r/^expected frame to hold numbers, got: #Nx.Tensor/},
            {{Nx.Defn.debug_expr(&Nx.negate/1).(frame), state},
             ~r/^expected frame to hold numbers, got: #Nx.Tensor/},
            {{frame, %{state | name => Nx.to_template(tensor)}},
             ~r/^expected mamba_block_1_conv_state to hold numbers, got: #Nx.Tensor/},
            {{frame, %{state | name => nil}}, "expected mamba_block_1_conv_state to be an Nx.Tensor, got: nil"},
            {{Nx.vectorize(Nx.new_axis(frame, 0), :seat), state},
             "expected frame to have no vectorized axes, got: [seat: 1]"},
            {{Nx.vectorize(frame, :game), state}, "expected frame to have no vectorized axes, got: [game: 1]"},
            {{frame, %{state | name => Nx.vectorize(tensor, :game)}},
             "expected mamba_block_1_conv_state to have no vectorized axes, got: [game: 1]"}
          ] do
        assert_raise ArgumentError, message, fn -> Nx.Serving.batched_run(Games, request) end
      end

      assert {%Nx.Tensor{}, _state} = Nx.Serving.batched_run(Games, {frame, state})
    end

    test "axes may have names, and others in other requests" do
      parameters = parameters()
      serving = parameters |> Mamba.Serving.new([batch_size: 2, batch_timeout: 10_000] ++ @opts) |> sizes(self())
      start_supervised!({Nx.Serving, name: Games, serving: serving})
      frame = Nx.broadcast(0.5, {1, 5})

      [one, other] =
        for names <- [[:game, :features], [:batch, :embed]] do
          Task.async(fn -> Nx.Serving.batched_run(Games, {Nx.rename(frame, names), Mamba.initial_state(@opts)}) end)
        end
        |> Task.await_many(60_000)

      assert one == other
      assert batches() == [2]
    end

    describe "in a cluster" do
      @describetag :distributed

      # A node of this machine with the same code, and the serving on it.
      defp node_with(serving) do
        {:ok, peer, node} = :peer.start_link(%{name: :peer.random_name(), args: [~c"-pa" | :code.get_path()]})

        for app <- [:nx, :axon, :exphil_native],
            do: {:ok, _} = :rpc.call(node, Application, :ensure_all_started, [app])

        # Under a supervisor of the node: a process that a call started would end with the call.
        child = Supervisor.child_spec({Nx.Serving, name: Games, serving: serving}, [])
        {:ok, _} = :supervisor.start_child({:kernel_safe_sup, node}, child)
        {peer, node}
      end

      defp until(condition, attempts \\ 100) do
        cond do
          condition.() -> :ok
          attempts > 0 -> Process.sleep(50) && until(condition, attempts - 1)
        end
      end

      defp members, do: :pg.get_members(Nx.Serving.PG, Games)

      test "a game goes on from node to node, and where one is gone" do
        parameters = parameters()
        serving = Mamba.Serving.new(parameters, @opts)
        {_, first} = node_with(serving)
        {second_peer, second} = node_with(serving)
        until(fn -> length(members()) == 2 end)
        assert members() |> Enum.map(&node/1) |> Enum.sort() == Enum.sort([first, second])

        # No serving on this node: every frame goes to one of the two by chance.
        for seed <- 1..4 do
          {output, _state} = play(Games, game(seed))
          close!(output, whole(parameters, game(seed)))
        end

        x = game(5)
        {_, state} = Nx.Serving.batched_run(Games, {x[[.., 0]], Mamba.initial_state(@opts)})
        :peer.stop(second_peer)
        until(fn -> Enum.map(members(), &node/1) == [first] end)

        {output, _state} =
          Enum.reduce(1..(@frames - 1), {nil, state}, fn at, {_output, state} ->
            Nx.Serving.batched_run({:distributed, Games}, {x[[.., at]], state})
          end)

        close!(output, whole(parameters, x))
      end
    end
  end
end
