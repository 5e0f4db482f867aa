defmodule Bench.Shapes do
  # bench/shapes.json by names, `%{"realtime" => {32, 60, 512, 16}, ...}`: batch, seq, dim, state.

  # A shape is a line: Elixir has had JSON only since 1.18.
  @shape ~r/"name": "([^"]+)", "batch": (\d+), "seq": (\d+), "dim": (\d+), "state": (\d+)/

  def read do
    registry = File.read!(Path.expand("shapes.json", __DIR__))
    found = Regex.scan(@shape, registry, capture: :all_but_first)

    if length(found) != length(Regex.scan(~r/"batch":/, registry)),
      do: raise("a shape is not in a line of its own")

    for [name | axes] <- found, into: %{}, do: {name, axes |> Enum.map(&String.to_integer/1) |> List.to_tuple()}
  end
end
