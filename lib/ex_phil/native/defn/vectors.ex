if Code.ensure_loaded?(Nx) do
  defmodule ExPhil.Native.Defn.Vectors do
    @moduledoc false
    # Vectorized tensors as one scan: their axes become a part of the batch where every instance has the same
    # parameters, else a part of the channels, which have parameters of their own anyway. b and c then have as many
    # more groups.
    alias ExPhil.Native.Defn.Pairs
    alias ExPhil.Native.SelectiveScan.Options

    @doc """
    The tensors of a scan or a step (`form`), by name, without vectorized axes, and a function that gives them back to a result, `:y` or
    `:final_state`.
    """
    def fold(tensors, form) do
      if Enum.any?(tensors, fn {_, tensor} -> tensor.vectorized_axes != [] end) do
        fold(tensors, into(tensors), arguments(form))
      else
        {tensors, fn _name, result -> result end}
      end
    end

    # As in Nx, the axes of the first argument come first.
    defp arguments(:scan), do: [:x, :dt, :a, :b, :c | Options.optional()]
    defp arguments(:step), do: [:initial_state | arguments(:scan)]

    defp into(tensors) do
      own? = fn name -> is_map_key(tensors, name) and tensors[name].vectorized_axes != [] end
      parameters = [:a, :d, :dt_bias] ++ for name <- [:b, :c], constant?(name, tensors), do: name

      cond do
        not Enum.any?(parameters, own?) ->
          :batch

        own?.(:seq_idx) ->
          raise ArgumentError,
                "expected seq_idx to be the same for all, without vectorized axes, where parameters have them, " <>
                  "got axes: #{inspect(tensors.seq_idx.vectorized_axes)}"

        true ->
          :channels
      end
    end

    defp fold(tensors, into, arguments) do
      {folded, shared} = Enum.split_with(tensors, fn {name, _} -> place(name, into, tensors) != nil end)
      in_order = Enum.sort_by(folded, fn {name, _} -> Enum.find_index(arguments, &(&1 == name)) end)
      {names, values} = Enum.unzip(in_order)
      [first | _] = values = Nx.broadcast_vectors(values)
      axes = first.vectorized_axes
      size = axes |> Enum.map(&elem(&1, 1)) |> Enum.product()

      folded =
        for {name, value} <- Enum.zip(names, values) do
          {name, value |> grouped(name, into, tensors) |> merge(size, place(name, into, tensors))}
        end

      {Map.new(shared ++ folded), fn name, result -> split(result, axes, size, place(name, into, tensors)) end}
    end

    # The axis that the vectorized axes come to lie before, and become one with; none where a tensor is shared.
    defp place(name, :batch, tensors) do
      shared? = name in [:a, :d, :dt_bias] or (name in [:b, :c] and constant?(name, tensors))
      if shared?, do: nil, else: 0
    end

    defp place(:seq_idx, :channels, _tensors), do: nil
    defp place(name, :channels, _tensors) when name in [:x, :dt, :z, :y], do: 2
    defp place(name, :channels, _tensors) when name in [:initial_state, :final_state], do: 1
    defp place(name, :channels, _tensors) when name in [:a, :d, :dt_bias], do: 0
    defp place(name, :channels, tensors), do: if(constant?(name, tensors), do: 0, else: 2)

    defp constant?(name, tensors), do: rank(name, tensors) == 2

    defp rank(name, tensors), do: Pairs.rank(tensors[name], tensors.a)

    # Groups have an axis, even a single one.
    defp grouped(value, name, :channels, tensors) when name in [:b, :c] do
      if rank(name, tensors) == 3, do: Nx.new_axis(value, 2), else: value
    end

    defp grouped(value, _name, _into, _tensors), do: value

    defp merge(value, size, place) do
      shape = value |> Nx.shape() |> Tuple.to_list()
      value = value |> Nx.devectorize(keep_names: false) |> Nx.reshape(List.to_tuple([size | shape]))
      {before, [axis | rest]} = Enum.split(shape, place)

      value
      |> Nx.transpose(axes: moved(value, 0, place))
      |> Nx.reshape(List.to_tuple(before ++ [size * axis | rest]))
    end

    defp split(result, axes, size, place) do
      {before, [axis | rest]} = result |> Nx.shape() |> Tuple.to_list() |> Enum.split(place)
      result = Nx.reshape(result, List.to_tuple(before ++ [size, div(axis, size) | rest]))
      sizes = Enum.map(axes, &elem(&1, 1))

      result
      |> Nx.transpose(axes: moved(result, place, 0))
      |> Nx.reshape(List.to_tuple(sizes ++ before ++ [div(axis, size) | rest]))
      |> Nx.vectorize(axes)
    end

    # The order of axes in which the one at `from` stands at `to`.
    defp moved(tensor, from, to), do: tensor |> Nx.axes() |> List.delete_at(from) |> List.insert_at(to, from)
  end
end
