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

  # What calls leave behind grows in every round of them. What other tests have left is given back in one round or
  # another, and makes room in that for more: the median has none of it.
  defp assert_no_growth(call) do
    # Before the first level are calls that take what stays.
    levels =
      for _ <- 0..10 do
        Enum.each(1..1000, fn _ -> call.() end)
        memory()
      end

    for kind <- [:resident, :beam] do
      growths = Enum.zip_with(levels, tl(levels), &(&2[kind] - &1[kind]))
      assert growths |> Enum.sort() |> Enum.at(5) < 6_400_000, "#{kind}: #{inspect(growths)}"
    end
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
