readme = Path.expand("../README.md", __DIR__)

# A bundle for another machine has none.
if File.exists?(readme) do
  defmodule ExPhil.Native.ReadmeTest do
    # The examples of the README's table of features run as they stand there.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    alias ExPhil.Native.Tensor

    @features readme |> File.read!() |> String.split("## Features") |> Enum.at(1) |> String.split("\n## ") |> hd()
    @examples for [_, code] <- Regex.scan(~r/^\|.*\| `([^`]+)` \|$/m, @features), do: code

    test "every feature has an example that runs" do
      [_head | rows] = Regex.scan(~r/^\| .*$/m, @features)
      assert length(@examples) == length(rows)
      binding = Keyword.new(bound())

      Enum.reduce(@examples, binding, fn example, binding ->
        {value, binding} = Code.eval_string("alias ExPhil.Native.SelectiveScan\n" <> example, binding)
        assert value, example
        binding
      end)
    end

    defp bound do
      inputs = random(batch: 1, seq: 5, dim: 4, state: 3)
      now = Map.new([:x, :dt, :b, :c], fn name -> {:"#{name}_now", frame(inputs[name], 0)} end)
      bf16 = Map.new([:x, :dt, :b, :c], fn name -> {:"#{name}_bf16", as_type(inputs[name], {:bf, 16})} end)

      inputs
      |> Map.merge(now)
      |> Map.merge(bf16)
      |> Map.merge(%{
        b_of_groups: normal({1, 5, 2, 3}, {:f, 32}),
        c_constant: normal({4, 3}, {:f, 32}),
        a_complex: complex_rates({4, 3}, {:f, 32}),
        b_complex: normal({1, 5, 3, 2}, {:f, 32}),
        c_complex: normal({1, 5, 3, 2}, {:f, 32}),
        seq_idx: Tensor.from_list([[0, 0, 1, 1, -1]], :s32),
        state: inputs.initial_state,
        dstate: inputs.initial_state,
        dy: inputs.z
      })
    end
  end
end
