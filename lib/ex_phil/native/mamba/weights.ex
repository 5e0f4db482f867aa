if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Mamba.Weights do
    @moduledoc false
    # The tensors of mamba_ssm by the names of the layers here. PyTorch keeps a matrix as {out, in} and the kernel of a
    # convolution as {channels, 1, size}; Axon has their axes the other way round.
    alias ExPhil.Native.Tensor

    @of_block %{
      "norm.weight" => {"norm", "gamma"},
      "mixer.in_proj.weight" => {"in_proj", "kernel"},
      "mixer.conv1d.weight" => {"conv_dw_conv", "kernel"},
      "mixer.conv1d.bias" => {"conv_dw_conv", "bias"},
      "mixer.x_proj.weight" => {"x_proj", "kernel"},
      "mixer.dt_proj.weight" => {"dt_proj", "kernel"},
      "mixer.dt_proj.bias" => {"ssm", "dt_bias"},
      "mixer.A_log" => {"ssm", "A_log"},
      "mixer.D" => {"ssm", "D"},
      "mixer.out_proj.weight" => {"out_proj", "kernel"}
    }

    @of_model %{
      "embedding.weight" => {"input_projection", "kernel"},
      "embedding.bias" => {"input_projection", "bias"},
      "norm_f.weight" => {"norm_f", "gamma"},
      "head.weight" => {"head", "kernel"},
      "head.bias" => {"head", "bias"}
    }

    def load(path) do
      parameters =
        for {name, tensor} <- Tensor.load_safetensors(path), {layer, parameter} <- place(name), reduce: %{} do
          layers -> put_in(layers, [Access.key(layer, %{}), parameter], to_axon(tensor, parameter))
        end

      if not is_map_key(parameters, "mamba_block_1_ssm") do
        raise ArgumentError, "expected #{path} to hold layers of a Mamba, layers.0.mixer.A_log and so on"
      end

      parameters
    end

    defp place("backbone." <> name), do: place(name)

    defp place("layers." <> rest) do
      [index, name] = String.split(rest, ".", parts: 2)

      case @of_block do
        %{^name => {layer, parameter}} -> [{"mamba_block_#{String.to_integer(index) + 1}_#{layer}", parameter}]
        _ -> []
      end
    end

    defp place(name), do: @of_model |> Map.take([name]) |> Map.values()

    defp to_axon(tensor, "kernel"), do: tensor |> Tensor.to_nx() |> Nx.transpose()
    defp to_axon(tensor, _parameter), do: Tensor.to_nx(tensor)
  end
end
