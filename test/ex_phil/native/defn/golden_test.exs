if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.GoldenTest do
    # The scan in Nx, forward and backward, on the cases of the float64 reference: every method by Blelloch's
    # algorithm, and every algorithm on those that differ in kind.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    alias ExPhil.Native.{SelectiveScan, Tensor}

    @file_of_cases Path.expand("../../../data/golden.safetensors", __DIR__)
    @short ~w(plain groups constant one_step complex complex_constant)

    setup_all do
      {:ok, tensors: Tensor.load_safetensors(@file_of_cases)}
    end

    for {name, description} <- Enum.sort(Tensor.safetensors_metadata(@file_of_cases)),
        [shape, method, _coefficients] = String.split(name, "."),
        algorithm <- [:blelloch, :hillis_steele, :cumsum, :sequential],
        if(algorithm == :blelloch,
          do: shape in @short or method == "zoh",
          else: shape in ["plain", "stiff", "long", "complex"] and method in ["zoh", "bilinear"]
        ) do
      settings = for word <- String.split(description), into: %{}, do: word |> String.split("=") |> List.to_tuple()

      @case_name name
      @opts [
        method: String.to_atom(settings["method"]),
        coefficients: String.to_atom(settings["coefficients"]),
        bidirectional: settings["bidirectional"] == "true",
        dt_softplus: settings["dt_softplus"] == "true",
        backend: :nx,
        algorithm: algorithm
      ]

      test "#{name} by #{algorithm}", %{tensors: tensors} do
        input = fn name -> tensors["#{@case_name}/in/#{name}"] end
        given = Enum.map(~w(x dt a b c), input)
        opts = @opts ++ for(key <- [:d, :z, :dt_bias, :initial_state], do: {key, input.(to_string(key))})

        {y, state} = apply(SelectiveScan, :scan_with_state, given ++ [opts])
        assert distance(y, tensors["#{@case_name}/out/y"]) < 1.0e-13
        assert distance(state, tensors["#{@case_name}/out/final_state"]) < 1.0e-13

        output_gradients = [{:dfinal_state, input.("dfinal_state")} | opts]
        gradients = apply(SelectiveScan, :backward, [input.("dy") | given] ++ [output_gradients])

        for {@case_name <> "/grad/" <> name, wanted} <- tensors do
          assert {name, distance(gradients[String.to_existing_atom(name)], wanted)} < {name, 1.0e-12}
        end
      end
    end
  end
end
