defmodule ExPhil.Native.SelectiveScan.LoadTest do
  # Many calls: at once, and one after the other.
  use ExUnit.Case, async: false

  # Seconds by themselves, and more than ExUnit's minute where others want the same cores.
  @moduletag timeout: 600_000

  import ExPhil.Native.Scans
  alias ExPhil.Native.SelectiveScan

  defp scan(inputs),
    do: SelectiveScan.scan_with_state(inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, d: inputs.d)

  # As in training: the states at the boundaries are handed over.
  defp backward(inputs) do
    given = [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]
    opts = [d: inputs.d, initial_state: inputs.initial_state]
    {_, _, boundary_states} = apply(SelectiveScan, :scan_for_backward, given ++ [opts])
    apply(SelectiveScan, :backward, [inputs.z | given] ++ [[{:boundary_states, boundary_states} | opts]])
  end

  test "64 processes at once get what each of them would get alone" do
    # Every other call is long enough for a dirty scheduler.
    problems = for n <- 1..64, do: random([seq: 3 + rem(n, 5) + rem(n, 2) * 200, dim: 32, state: 16], n)

    for call <- [&scan/1, &backward/1] do
      alone = Enum.map(problems, call)
      at_once = problems |> Enum.map(&Task.async(fn -> call.(&1) end)) |> Task.await_many(60_000)
      assert at_once == alone
      assert length(Enum.uniq(alone)) == 64
    end
  end

  @tag :proc
  test "10,000 calls leave no memory behind" do
    # 140 KB of results a call: 1.4 GB in all.
    inputs = random(batch: 1, seq: 4, dim: 2048, state: 16)
    assert_no_growth(fn -> scan(inputs) end)
  end

  @tag :proc
  test "10,000 backward calls leave no memory behind" do
    # 50 KB of gradients and boundary states a call.
    inputs = random(batch: 1, seq: 4, dim: 256, state: 16)
    assert_no_growth(fn -> backward(inputs) end)
  end

  defp assert_no_growth(call) do
    repeat = fn count -> Enum.each(1..count, fn _ -> call.() end) end
    repeat.(1000)
    before = memory()
    repeat.(10_000)
    growth = Map.merge(memory(), before, fn _, now, earlier -> now - earlier end)
    assert growth.resident < 64_000_000, inspect(growth)
    assert growth.beam < 64_000_000, inspect(growth)
  end

  test "10,000 calls that are refused leave no memory behind" do
    inputs = random([])
    wrong = %{inputs | c: %{inputs.c | data: <<>>}}

    refuse = fn ->
      catch_error(scan(wrong))
      catch_error(backward(wrong))
    end

    for _ <- 1..1000, do: refuse.()
    before = :erlang.memory(:total)
    Enum.each(1..10_000, fn _ -> refuse.() end)
    assert :erlang.memory(:total) - before < 16_000_000
  end

  defp memory do
    :erlang.garbage_collect()
    [_, kilobytes] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/self/status"))
    %{resident: String.to_integer(kilobytes) * 1024, beam: :erlang.memory(:total)}
  end
end
