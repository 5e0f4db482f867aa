if Code.ensure_loaded?(Axon) and Code.ensure_loaded?(ExPhil.Native.Mamba.Serving) do
  defmodule ExPhil.Native.Mamba.ServingTest do
    # Many games in one serving, on one node and on two.
    use ExUnit.Case
    doctest ExPhil.Native.Mamba.Serving

    alias ExPhil.Native.Mamba

    @opts [embed_size: 5, hidden_size: 8, state_size: 3, num_layers: 2]
    @frames 6

    defp parameters do
      {init, _predict} = Axon.build(Mamba.build(@opts), seed: 0)
      init.(Nx.template({1, 60, 5}, :f32), Axon.ModelState.empty())
    end

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

    test "parameters that are none are refused" do
      for {wrong, got} <- [{nil, "nil"}, {[a: 1], "[a: 1]"}, {%{"a" => "b"}, ~S({"a", "b"})}] do
        error = assert_raise ArgumentError, fn -> Mamba.Serving.new(wrong, @opts) end
        assert error.message =~ ~r/expected parameters to be .*, got: #{Regex.escape(got)}/
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
            {{Nx.template({1, 5}, :f32), state}, ~r/^expected frame to hold numbers, got: #Nx.Tensor/},
            {{frame, %{state | name => nil}}, "expected mamba_block_1_conv_state to be an Nx.Tensor, got: nil"},
            {{Nx.vectorize(Nx.new_axis(frame, 0), :seat), state},
             "expected frame to have no vectorized axes, got: [seat: 1]"}
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
