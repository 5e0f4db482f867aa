readme = Path.expand("../README.md", __DIR__)

# A bundle for another machine has none.
if File.exists?(readme) do
  defmodule ExPhil.Native.ReadmeTest do
    # The code at the top of the README and the examples of its table of features run as they stand there.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    alias ExPhil.Native.{SelectiveScan, Tensor}

    @text File.read!(readme)
    @features @text |> String.split("## Features") |> Enum.at(1) |> String.split("\n## ") |> hd()
    @examples for [_, code] <- Regex.scan(~r/^\|.*\| `([^`]+)` \|$/m, @features), do: code

    # The first block of Elixir after a heading.
    defp code(heading) do
      [_, after_heading] = String.split(@text, heading <> "\n", parts: 2)
      [_, code] = Regex.run(~r/^```elixir\n(.*?)^```$/ms, after_heading)
      code
    end

    test "one frame more, as at the top, is the scan over one frame more" do
      all = random(batch: 1, seq: 6, dim: 4, state: 3)
      of_frames = [:x, :dt, :z, :b, :c]
      before = for name <- of_frames, do: {name, cut(all[name], 0, 5)}
      now = for name <- of_frames, do: {:"#{name}_now", frame(all[name], 5)}
      given = Keyword.new(Map.take(all, [:a, :d, :dt_bias])) ++ before ++ now

      {_, got} = Code.eval_string(code("# exphil_native"), given)

      options = [d: all.d, z: all.z, dt_bias: all.dt_bias, dt_softplus: true]
      {y, state} = SelectiveScan.scan_with_state(all.x, all.dt, all.a, all.b, all.c, options)
      assert distance(got[:y_now], frame(y, 5)) < 1.0e-5
      assert distance(got[:state], state) < 1.0e-5
    end

    test "the first example gives the shapes that it says" do
      {{_backend, _why}, got} = Code.eval_string(code("## A first example"))
      assert Tensor.shape(got[:y]) == {4, 64, 128}
      assert Tensor.shape(got[:state]) == {4, 128, 16}
      assert distance(got[:y], got[:tensors]["scan.0.y"]) < 1.0e-5
    end

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
