defmodule Mix.Tasks.SelectiveScan.VerifyTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  alias ExPhil.Native.SelectiveScan.Verify
  alias Mix.Tasks.SelectiveScan.Verify, as: Task

  test "prints the distances of every pair, where the series leave, and that nothing is wrong" do
    words = capture_io(fn -> Task.run(["--backend", "cpu"]) end)
    for {label, _} <- Verify.variants(), do: assert(words =~ ~r/^ +\d+ #{label}( |$)/m)
    assert words =~ "Distances of outputs on cpu"
    assert words =~ "Distances of gradients"
    assert words =~ ~r/^foh +0\.100 +0\.750 +3\.\d+$/m
    assert words =~ ~r/Summary.*backends: cpu; variants: 12\nno two variants are the same\n/s
    refute words =~ "!"
  end

  test "says what it does, and does nothing" do
    for task <- [Task, Mix.Tasks.SelectiveScan.Profile], flag <- ["--help", "-h"] do
      words = capture_io(fn -> task.run([flag]) end)
      assert words =~ ~r/mix selective_scan\.(verify|profile)/
      assert words =~ "--help"
      refute words =~ "Summary\n"
    end
  end

  test "backends are compared with one another" do
    results = Verify.results(:cpu, Verify.input({1, 6, 3, 2}))
    words = capture_io(fn -> Task.report(cpu: results, cpu: results) end)
    assert words =~ "Distances of gradients (the farthest of dx, ddt, da, db, dc) between cpu and cpu"
    assert words =~ "no two variants are the same, and the backends agree"
  end

  test "one that is named twice is one" do
    words = capture_io(fn -> Task.run(["--backend", "cpu", "--backend", "cpu"]) end)
    assert words =~ "backends: cpu; "
    refute words =~ "between"
  end

  test "whatever is found is in the summary" do
    results = Verify.results(:cpu, Verify.input({1, 6, 3, 2}))
    other = %{results | "rk4" => results["zoh"]}

    words =
      capture_io(fn ->
        assert_raise Mix.Error, "selective_scan.verify found 4 error(s)", fn ->
          Task.report(cpu: results, cpu: other)
        end
      end)

    for kind <- [:outputs, :gradients] do
      assert words =~ "ERROR cpu: rk4 and zoh have the same #{kind} (0.0 apart)"
      assert words =~ "ERROR rk4: #{kind} of cpu and cpu are "
    end
  end

  @tag :no_cuda
  test "without a device, the CPU is what there is" do
    assert capture_io(fn -> Task.run([]) end) =~ "backends: cpu; "
  end

  @tag :cuda
  test "CUDA computes what the CPU does" do
    words = capture_io(fn -> Task.run([]) end)
    assert words =~ "between cpu and cuda"
    assert words =~ "and the backends agree"
  end

  @tag :no_cuda
  test "a backend that cannot run is an error that says why" do
    assert_raise Mix.Error, ~r/the cuda backend cannot run/, fn ->
      capture_io(fn -> Task.run(["--backend", "cuda"]) end)
    end
  end

  test "what it does not know is refused" do
    for args <- [["--backend", "gpu"], ["--backend", "cuda:x"], ["--seed", "1"], ["cpu"]] do
      assert_raise Mix.Error, ~r/expected --backend cpu, cuda or cuda:N, got: /, fn -> Task.run(args) end
    end
  end

  test "a method that computes another's results is marked and named" do
    results = Verify.results(:cpu, Verify.input({1, 6, 3, 2}))
    results = %{results | "rk4" => results["zoh"]}

    for kind <- [:outputs, :gradients] do
      words = capture_io(fn -> send(self(), Task.methods(:cpu, results, kind)) end)
      assert words =~ ~r/^ 12 rk4 +!0\.0e\+0 /m
      assert_received [fault]
      assert fault == "cpu: rk4 and zoh have the same #{kind} (0.0 apart)"
    end
  end

  test "errors are named and end it" do
    words =
      capture_io(fn ->
        assert_raise Mix.Error, "selective_scan.verify found 1 error(s)", fn ->
          Task.summary([:cpu], ["cpu: foh and zoh have the same outputs (0.0 apart)"])
        end
      end)

    assert words =~ "ERROR cpu: foh and zoh have the same outputs (0.0 apart)"
  end
end
