defmodule ExPhil.Native.SelectiveScan.GoldenTest do
  # Cases of a float64 reference, through the whole API. EXPHIL_GOLDEN names another file of the same form.
  use ExUnit.Case, async: true

  import ExPhil.Native.Scans
  alias ExPhil.Native.{SelectiveScan, Tensor}

  @file_of_cases System.get_env("EXPHIL_GOLDEN") || Path.expand("../../../data/golden.safetensors", __DIR__)

  setup_all do
    {:ok, tensors: Tensor.load_safetensors(@file_of_cases)}
  end

  for {name, description} <- Enum.sort(Tensor.safetensors_metadata(@file_of_cases)) do
    settings = for word <- String.split(description), into: %{}, do: word |> String.split("=") |> List.to_tuple()

    @opts [
      method: String.to_atom(settings["method"]),
      coefficients: String.to_atom(settings["coefficients"]),
      bidirectional: settings["bidirectional"] == "true",
      dt_softplus: settings["dt_softplus"] == "true"
    ]

    for {type, tolerance} <- [{{:f, 64}, 1.0e-12}, {{:f, 32}, 2.0e-6}] do
      @type_of_case type
      @tolerance tolerance
      test "#{name} in #{Tensor.type_name(type)}", %{tensors: tensors} do
        input = fn key ->
          tensor = tensors["#{unquote(name)}/in/#{key}"]
          tensor && as_type(tensor, @type_of_case)
        end

        [x, dt, a, b, c] = Enum.map(~w(x dt a b c), input)
        optional = for key <- [:d, :z, :dt_bias, :initial_state], do: {key, input.(key)}
        {y, state} = SelectiveScan.scan_with_state(x, dt, a, b, c, @opts ++ optional)
        assert distance(y, tensors["#{unquote(name)}/out/y"]) < @tolerance
        assert distance(state, tensors["#{unquote(name)}/out/final_state"]) < @tolerance
      end
    end
  end
end
