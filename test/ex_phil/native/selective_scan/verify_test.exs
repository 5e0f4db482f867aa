defmodule ExPhil.Native.SelectiveScan.VerifyTest do
  # That the comparison of methods and backends finds what is wrong with them.
  use ExUnit.Case, async: true

  import ExPhil.Native.Scans
  alias ExPhil.Native.{Error, SelectiveScan, Tensor}
  alias ExPhil.Native.SelectiveScan.{Options, Verify}

  test "every method with each kind of coefficients that the native library knows is compared" do
    assert methods() |> Enum.sort() ==
             Verify.variants()
             |> Enum.map(fn {_, options} -> {options[:method], options[:coefficients]} end)
             |> Enum.uniq()
             |> Enum.sort()

    x = Tensor.zeros({1, 1, 1})
    scan = &SelectiveScan.scan(x, x, Tensor.zeros({1, 1}), x, x, &1)
    message = assert_raise(ArgumentError, fn -> scan.(method: :none) end).message
    all = for [_, name] <- Regex.scan(~r/:(\w+)/, message), name != "none", do: name
    assert Enum.uniq(for {method, _} <- methods(), do: to_string(method)) == all

    for method <- Keyword.keys(methods()) |> Enum.uniq(), method not in Options.with_taylor() do
      assert_raise ArgumentError, ~r/be :exact for method/, fn -> scan.(method: method, coefficients: :taylor) end
    end
  end

  test "two identical results are a fault, whichever of the tensors it is" do
    results = %{
      "one" => %{outputs: [[1.0, 2.0]], gradients: [[1.0, 0.0], [3.0]]},
      "two" => %{outputs: [[1.0, 2.0]], gradients: [[0.0, 1.0], [3.0]]},
      "three" => %{outputs: [[1.0, 2.5]], gradients: [[1.0, 1.0], [4.0]]}
    }

    labels = ["one", "two", "three"]
    matrix = Verify.matrix(labels, results, :outputs)
    assert Map.keys(matrix) |> Enum.sort() == [{"three", "one"}, {"three", "two"}, {"two", "one"}]
    assert matrix[{"two", "one"}] == 0.0
    assert Verify.faults(matrix, :outputs) == ["two and one have the same outputs (0.0 apart)"]
    gradients = Verify.matrix(labels, results, :gradients)
    assert Verify.faults(gradients, :gradients) == ["two and one have the same gradients (0.0 apart)"]
  end

  test "a difference that is rounding is none" do
    assert [_] = Verify.faults(%{{"two", "one"} => 1.0e-7}, :outputs)
    assert [] = Verify.faults(%{{"two", "one"} => 1.0e-3}, :outputs)
    refute Verify.apart?(1.0e-7, :outputs)
    assert Verify.apart?(1.0e-4, :gradients)
  end

  test "what is no number tells nothing apart" do
    assert Verify.nearest([[1.0], [:nan]], [[2.0], [1.0]]) == :nan
    assert Verify.farthest([[:infinity]], [[:infinity]]) == :nan
    assert Verify.faults(%{{"two", "one"} => :nan}, :outputs) == ["two and one have outputs that are no numbers"]
    assert Verify.apart?(:nan, :outputs)
  end

  test "distances are relative, of the nearest or of the farthest tensors" do
    assert_in_delta Verify.nearest([[3.0, 4.0], [1.0]], [[3.0, 4.5], [2.0]]),
                    0.5 / :math.sqrt(9 + 4.5 * 4.5),
                    1.0e-12

    assert Verify.farthest([[3.0, 4.0], [1.0]], [[3.0, 4.5], [2.0]]) == 0.5
    assert Verify.nearest([[0.0]], [[0.0]]) == 0.0
  end

  test "the series leave the closed forms where mathematics says" do
    # g/Δ² is 1/2 - z/6 + z²/24 - z³/120 for z = |AΔ|: a single real root.
    {parts, changes_sign} = Verify.departure(:foh, 0.5, :cpu)
    series = fn z -> 1 / 2 - z / 6 + z * z / 24 - z * z * z / 120 end
    exact = fn z -> (:math.exp(-z) - 1 + z) / (z * z) end
    assert series.(changes_sign) < 0 and series.(changes_sign - 0.004) >= 0
    off = fn z -> abs(series.(z) / exact.(z) - 1) end
    assert off.(parts) > 1.0e-3 and off.(parts - 0.004) <= 1.0e-3
  end

  @tag :no_cuda
  test "they are those of the backend that is asked for" do
    assert_raise Error, ~r/the cuda backend cannot run/, fn -> Verify.departure(:foh, 0.5, :cuda) end
  end
end
