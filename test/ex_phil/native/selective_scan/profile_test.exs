defmodule ExPhil.Native.SelectiveScan.ProfileTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  alias ExPhil.Native.SelectiveScan.Timing
  alias Mix.Tasks.SelectiveScan.Profile

  defp profile(flags),
    do: capture_io(fn -> Profile.run(~w(--batch 1 --dim 8 --seqlen 4 --dstate 2 --n-trials 5) ++ flags) end)

  test "without a flag, functions and methods; with one, its table" do
    both = profile([])
    for name <- ~w(scan backward step zoh highorder), do: assert(both =~ ~r/^#{name} +cpu( +\d+\.\d){5} +\d+$/m)
    assert both =~ ~r/method +backend +mean +sd +min +p50 +p99 +frames/
    refute profile(["--profile-ops"]) =~ "highorder"
    refute profile(["--profile-scan"]) =~ "backward"
  end

  test "refuses what it does not know" do
    for flags <- [["--chunks", "3"], ["--batch", "0"], ["many"], ["--dim", "x"]] do
      assert_raise Mix.Error, ~r/expected/, fn -> profile(flags) end
    end

    assert_raise Mix.Error, "expected --n-trials to be a positive integer, got: 0", fn ->
      profile(["--n-trials", "0"])
    end
  end

  test "statistics leave warm-ups out" do
    {:ok, calls} = Agent.start_link(fn -> 0 end)
    # The first two calls take long.
    call = fn -> if Agent.get_and_update(calls, &{&1, &1 + 1}) < 2, do: Process.sleep(100) end
    time = Timing.measure(call, 100, 2)
    assert Agent.get(calls, & &1) == 102
    assert time.min <= time.p50 and time.p50 <= time.p99
    assert time.p99 < 100_000
  end
end
