notebook = Path.expand("../examples/frames.livemd", __DIR__)

if Code.ensure_loaded?(Axon) and not Code.ensure_loaded?(VegaLite) do
  # Charts are for Livebook: what is put into them is kept.
  defmodule VegaLite do
    def new(opts), do: %{opts: opts, data: []}
    def mark(chart, mark), do: Map.put(chart, :mark, mark)
    def encode_field(chart, channel, field, _opts), do: Map.put(chart, channel, field)
    def encode(chart, channel, opts), do: Map.put(chart, channel, opts)
    def data_from_values(chart, values), do: %{chart | data: values}
  end

  defmodule Kino do
    def render(term), do: term
  end

  defmodule Kino.VegaLite do
    def new(chart), do: chart
    def push(_chart, %{"frame" => _, "milliseconds" => _} = point, window: _), do: send(self(), {:pushed, point})
  end
end

if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.LivebookTest do
    # The notebook's cells run, in order, for a second in place of ten.
    use ExUnit.Case, async: true

    @cells Regex.scan(~r/```elixir\n(.*?)```/s, File.read!(notebook), capture: :all_but_first) |> List.flatten()

    test "plays a frame 60 times a second and plots what each took" do
      [setup | cells] = @cells
      assert setup =~ "Mix.install"
      code = cells |> Enum.join("\n") |> String.replace("seconds = 10", "seconds = 1")
      started = System.monotonic_time(:millisecond)
      {histogram, bindings} = Code.eval_string(code)
      assert System.monotonic_time(:millisecond) - started >= 1000
      assert length(bindings[:times]) == 60
      assert length(histogram.data) == 60
      for index <- 1..60, do: assert_received({:pushed, %{"frame" => ^index}})
    end
  end
end
