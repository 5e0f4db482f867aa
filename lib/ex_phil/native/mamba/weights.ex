if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Mamba.Weights do
    @moduledoc false
    # The tensors of mamba_ssm by the names of the layers here. PyTorch keeps a matrix as {out, in} and the kernel of a
    # convolution as {channels, 1, size}; Axon has their axes the other way round.
    alias ExPhil.Native.{Error, Tensor}

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

    # Of models of language, and of Hugging Face.
    @other_names %{"embeddings.weight" => "embedding.weight", "lm_head.weight" => "head.weight"}

    # Convolutions may have none.
    @optional ["mixer.conv1d.bias"]

    def load(path) when is_binary(path), do: path |> weights() |> read(path)
    def load([character | _] = path) when is_integer(character), do: path |> IO.chardata_to_string() |> load()

    def load([_ | _] = paths) do
      if List.improper?(paths) or not Enum.all?(paths, &is_binary/1), do: no_paths!(paths)
      paths |> Enum.flat_map(&weights/1) |> read(Enum.join(paths, ", "))
    end

    def load(other), do: no_paths!(other)

    defp no_paths!(got) do
      raise ArgumentError, "expected the path of a safetensors file, or a list of paths, got: #{inspect(got)}"
    end

    # Those of a model among the tensors of a file, by their plain names. A name may be there twice.
    defp weights(path) do
      for {name, tensor} <- Tensor.load_safetensors(path), name = plain(name), weight?(name), do: {name, tensor}
    end

    defp weight?(name), do: String.starts_with?(name, "layers.") or is_map_key(@of_model, name)

    defp read(weights, path) do
      once!(Enum.map(weights, &elem(&1, 0)), path)
      Enum.each(weights, &floating!/1)
      tensors = Map.new(weights)
      {table, others} = table(tensors)

      parameters =
        for {name, tensor} <- others, {layer, parameter} = place(name, path), reduce: table do
          layers -> put_in(layers, [Access.key(layer, %{}), parameter], to_axon(tensor, parameter))
        end

      whole!(Map.keys(tensors), path)
      Map.new(parameters, fn {layer, own} -> {layer, with_bias(layer, own)} end)
    end

    # The layers here have one where a file may have none.
    defp with_bias(layer, %{"kernel" => kernel} = own) do
      if layer == "input_projection" or String.ends_with?(layer, "_conv_dw_conv") do
        size = Nx.axis_size(kernel, -1)
        Map.put_new_lazy(own, "bias", fn -> {size} |> Tensor.zeros(Nx.type(kernel)) |> Tensor.to_nx() end)
      else
        own
      end
    end

    defp with_bias(_layer, own), do: own

    # No file says which of two is meant.
    defp once!(names, path) do
      with [name | _] <- names -- Enum.uniq(names) do
        raise ArgumentError, "expected #{path} to hold every weight once, got: #{name} twice"
      end
    end

    # The integers of a quantized checkpoint are no weights without their scales.
    defp floating!({_name, %{type: {class, _bits}}}) when class in [:f, :bf], do: :ok
    defp floating!({name, %{type: type}}), do: Error.wrong!(name, "have a type of floating point", type)

    # What is lacking would be there at random.
    defp whole!(names, path) do
      layers = for "layers." <> rest <- names, uniq: true, do: rest |> Integer.parse() |> elem(0)

      if layers == [] do
        raise ArgumentError, "expected #{path} to hold layers of a Mamba, layers.0.mixer.A_log and so on"
      end

      of_layer = Map.keys(@of_block) -- @optional
      # So many layers have the numbers from 0 on; where one has a greater, one of these is not there.
      numbers = Enum.uniq(Enum.to_list(0..(length(layers) - 1)) ++ layers)
      wanted = for number <- numbers, name <- of_layer, do: "layers.#{number}.#{name}"

      with [_ | _] = lacking <- Enum.sort(["norm_f.weight" | wanted] -- names) do
        {first, others} = Enum.split(lacking, 3)
        more = if others == [], do: "", else: " and #{length(others)} more"

        raise ArgumentError,
              "expected #{path} to hold a whole model, got none of: #{Enum.join(first, ", ")}#{more}"
      end
    end

    defp plain(name) do
      name = String.replace_prefix(name, "backbone.", "")
      Map.get(@other_names, name, name)
    end

    # An embedding without a bias is a table with a row for every token: already {in, out}, for frames of which one number
    # is 1. A head that shares its weights is not in the file again, and is {out, in} as any other.
    defp table(%{"embedding.weight" => weight} = tensors) when not is_map_key(tensors, "embedding.bias") do
      others = tensors |> Map.delete("embedding.weight") |> Map.put_new("head.weight", weight)
      {%{"input_projection" => %{"kernel" => Tensor.to_nx(weight)}}, others}
    end

    defp table(tensors), do: {%{}, tensors}

    defp place("layers." <> rest = name, path) do
      # No other "00" beside "0", and no "-1", which Integer.parse/1 takes as well.
      with {index, "." <> of_block} <- Integer.parse(rest),
           true <- index >= 0 and String.starts_with?(rest, "#{index}."),
           %{^of_block => {layer, parameter}} <- @of_block do
        {"mamba_block_#{index + 1}_#{layer}", parameter}
      else
        _ ->
          known = @of_block |> Map.keys() |> Enum.sort() |> Enum.join(", ")
          raise ArgumentError, "expected every layer in #{path} to have #{known}, got: #{name}"
      end
    end

    defp place(name, _path), do: @of_model[name]

    defp to_axon(tensor, "kernel"), do: tensor |> Tensor.to_nx() |> Nx.transpose()
    defp to_axon(tensor, _parameter), do: Tensor.to_nx(tensor)
  end
end
