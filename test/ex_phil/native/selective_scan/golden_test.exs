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

    # How far outputs and gradients may be from the float64 reference, relative to their norm.
    for {type, of_outputs, of_gradients} <- [{{:f, 64}, 1.0e-12, 1.0e-10}, {{:f, 32}, 2.0e-6, 1.0e-5}] do
      @case_name name
      @type_of_case type
      @of_outputs of_outputs
      @of_gradients of_gradients

      test "#{name} in #{Tensor.type_name(type)}", %{tensors: tensors} do
        {given, opts} = call(tensors, @case_name, @type_of_case, @opts)
        {y, state} = apply(SelectiveScan, :scan_with_state, given ++ [opts])
        assert distance(y, tensors["#{@case_name}/out/y"]) < @of_outputs
        assert distance(state, tensors["#{@case_name}/out/final_state"]) < @of_outputs
      end

      test "#{name} backward in #{Tensor.type_name(type)}", %{tensors: tensors} do
        {given, opts} = call(tensors, @case_name, @type_of_case, @opts)
        [dy, dfinal_state] = for name <- ~w(dy dfinal_state), do: input(tensors, @case_name, name, @type_of_case)

        gradients = apply(SelectiveScan, :backward, [dy | given] ++ [[{:dfinal_state, dfinal_state} | opts]])

        wanted = for {@case_name <> "/grad/" <> name, tensor} <- tensors, do: {name, tensor}
        assert gradients |> Map.keys() |> Enum.map(&to_string/1) == wanted |> Enum.map(&elem(&1, 0)) |> Enum.sort()

        for {name, tensor} <- wanted do
          assert {name, distance(gradients[String.to_existing_atom(name)], tensor)} < {name, @of_gradients}
        end
      end
    end
  end

  defp call(tensors, name, type, opts) do
    optional = for key <- [:d, :z, :dt_bias, :initial_state], do: {key, input(tensors, name, key, type)}
    {for(key <- ~w(x dt a b c), do: input(tensors, name, key, type)), opts ++ optional}
  end

  defp input(tensors, name, key, type) do
    tensor = tensors["#{name}/in/#{key}"]
    tensor && as_type(tensor, type)
  end
end
