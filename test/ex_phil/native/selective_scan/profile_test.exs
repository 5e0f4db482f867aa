defmodule ExPhil.Native.SelectiveScan.ProfileTest do
  use ExUnit.Case, async: false

  import ExPhil.Native.Scans
  import ExUnit.CaptureIO
  alias ExPhil.Native.SelectiveScan.{Options, Timing}
  alias Mix.Tasks.SelectiveScan.Profile

  defp profile(flags),
    do: capture_io(fn -> Profile.run(~w(--batch 1 --dim 8 --seqlen 4 --dstate 2 --n-trials 5) ++ flags) end)

  test "without a flag, functions and methods; with one, its table" do
    both = profile([])
    for name <- ~w(scan backward step zoh highorder), do: assert(both =~ ~r/^#{name} +cpu( +\d+\.\d){5} +\d+$/m)
    assert both =~ ~r/method +backend +mean +sd +min +p50 +p99 +frames/
    refute profile(["--profile-ops"]) =~ "highorder"
    refute profile(["--profile-scan"]) =~ "backward"
    refute profile(["--no-profile-ops"]) =~ "backward"
    refute profile(["--no-profile-scan"]) =~ "highorder"
    for flags <- [["--profile-ops", "--profile-scan"], []], do: assert(profile(flags) =~ ~r/backward.*highorder/s)
    refute profile(["--no-profile-ops", "--no-profile-scan"]) =~ "cpu"
  end

  test "every row is of the call that it names" do
    calls = native_calls(fn -> profile([]) end)
    ran = for {name, arguments} <- calls, call = ran(name, arguments), do: call
    functions = [scan: :y, scan: :boundary_states, backward: nil, step: :final_state]
    wanted = for {form, wanted} <- functions, do: {form, :zoh, wanted}
    assert Enum.dedup(ran) == wanted ++ for(method <- Options.methods(), do: {:scan, method, :y})
  end

  defp ran(:forward_cpu, [form, _tensors, options, wanted]), do: {form, options.method, wanted}
  defp ran(:backward_cpu, [_dy, _tensors, options]), do: {:backward, options.method, nil}
  defp ran(_name, _arguments), do: nil

  test "throughput is of all frames of a call, in a step one a sequence" do
    words = profile(["--batch", "2"])
    rows = Regex.scan(~r/^(\w+) +cpu +(\d+\.\d) .* (\d+)$/m, words, capture: :all_but_first)

    frames =
      for [name, mean, rate] <- rows, do: {name, round(String.to_float(mean) * String.to_integer(rate) / 1.0e6)}

    functions = [{"scan", 8}, {"scan_for_backward", 8}, {"backward", 8}, {"step", 2}]
    assert frames == functions ++ for(method <- Options.methods(), do: {"#{method}", 8})
  end

  test "refuses what it does not know" do
    for flags <- [["--chunks", "3"], ["--batch", "0"], ["many"], ["--dim", "x"]] do
      assert_raise Mix.Error, ~r/expected/, fn -> profile(flags) end
    end

    assert_raise Mix.Error, "expected --n-trials to be a positive integer, got: 0", fn ->
      profile(["--n-trials", "0"])
    end

    for {dim, words} <- [{2 ** 57, ~r/out of memory/}, {2 ** 62, ~r/of less than 2\^63 bytes/}] do
      assert_raise Mix.Error, words, fn -> profile(["--dim", "#{dim}"]) end
    end
  end

  test "statistics are those of all times, in whatever order they come" do
    times = Timing.statistics(Enum.to_list(100..1//-1))
    assert Map.take(times, [:mean, :min, :p50, :p99]) == %{mean: 50.5, min: 1, p50: 50, p99: 99}
    # Of a sample: n(n + 1)/12 is the variance of the first n numbers.
    assert_in_delta times.sd, :math.sqrt(100 * 101 / 12), 1.0e-9
    assert Timing.statistics([3.0]) == %{mean: 3.0, sd: 0.0, min: 3.0, p50: 3.0, p99: 3.0}
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
