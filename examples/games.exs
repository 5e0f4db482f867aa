# Many games at 60 frames a second in one serving: mix run examples/games.exs [games] [seconds]
#
# Every game is a process of its own and sends its frame together with its recurrent state; the serving goes one frame
# on with all of them in one batch. The model is small and untrained: everything but the scan runs in Nx's own backend.
alias ExPhil.Native.Mamba

if not Code.ensure_loaded?(Mamba.Serving),
  do: raise("this example wants Axon, and Nx 0.11 or newer: mix local.hex, mix deps.get")

words = for word <- System.argv(), do: Integer.parse(word)

[games, seconds] =
  case words do
    [] ->
      [8, 3]

    [{games, ""}] when games > 0 ->
      [games, 3]

    [{games, ""}, {seconds, ""}] when games > 0 and seconds > 0 ->
      [games, seconds]

    _ ->
      IO.puts(:stderr, "mix run examples/games.exs [games] [seconds], numbers above 0")
      System.halt(2)
  end

frame_us = div(1_000_000, 60)
opts = [embed_size: 32, hidden_size: 16, state_size: 16, num_layers: 1, head: &Axon.dense(&1, 8, name: "head")]
{init, _predict} = Axon.build(Mamba.build_step(opts), seed: 0)
inputs = opts |> Mamba.initial_state() |> Map.put("frame", Nx.template({1, 32}, :f32))
parameters = init.(inputs, Axon.ModelState.empty())
serving = Mamba.Serving.new(parameters, [batch_size: games] ++ opts)
{:ok, _} = Supervisor.start_link([{Nx.Serving, name: Games, serving: serving}], strategy: :one_for_one)

play = fn game ->
  frame = Nx.broadcast(game / games, {1, 32})
  started = System.monotonic_time(:microsecond)

  {times, _state} =
    Enum.map_reduce(1..(seconds * 60), Mamba.initial_state(opts), fn at, state ->
      {time, {_output, state}} = :timer.tc(fn -> Nx.Serving.batched_run(Games, {frame, state}) end)
      wait = started + at * frame_us - System.monotonic_time(:microsecond)
      if wait > 0, do: Process.sleep(div(wait, 1000))
      {time, state}
    end)

  times
end

times =
  1..games |> Task.async_stream(play, max_concurrency: games, timeout: :infinity) |> Enum.flat_map(&elem(&1, 1))

sorted = Enum.sort(times)
percentile = fn percent -> Float.round(Enum.at(sorted, div(length(sorted) * percent, 100)) / 1000, 2) end
late = Enum.count(times, &(&1 > frame_us))

IO.puts(
  "#{games} games, #{length(times)} frames: p50 #{percentile.(50)} ms, p99 #{percentile.(99)} ms, #{late} later than 16.7 ms"
)
