defmodule ExPhil.Native.SelectiveScan.Scratch do
  @moduledoc false
  # The memory that a scan takes beside its tensors, asked of the native library in its own words:
  # `x=f32[2,60,512] dt=f32[2,60,512] … method=foh reverse=1`.
  alias ExPhil.Native.{Nif, Tensor}
  alias ExPhil.Native.SelectiveScan.Options

  @doc """
  `{forward, backward, chunks}` on the platform `"Host"` or `"CUDA"`: the bytes that each pass works in, and into how many
  chunks of frames boundary states divide a sequence. `specs` are tensors by their names, with or without their data.
  """
  def of(platform, specs, options) do
    {:ok, scratch} = Nif.xla_scratch(platform, words(specs, options))
    scratch
  end

  @doc "The shape of a state: {batch, dim, state}, with a trailing 2 where it is complex."
  def state_shape(%{shape: x}, %{shape: a}), do: Tuple.insert_at(a, 0, elem(x, 0))

  @doc "The shape of boundary states of so many chunks."
  def boundary_shape(chunks, %{x: x, a: a}, options) do
    List.to_tuple([Options.directions(options), elem(x.shape, 0), chunks | Tuple.to_list(a.shape)])
  end

  defp words(specs, options) do
    tensors = for {name, spec} <- specs, do: "#{name}=#{Tensor.type_name(spec.type)}#{axes(spec.shape)}"
    Enum.join(tensors ++ for({name, value} <- attributes(options), do: "#{name}=#{word(value)}"), " ")
  end

  defp axes(shape), do: "[#{shape |> Tuple.to_list() |> Enum.join(",")}]"

  @doc "The options by the names of the attributes that the native handlers read (docs/xla.md)."
  def attributes(options) do
    [min, max] = if options.dt_limit, do: Tuple.to_list(options.dt_limit), else: [nil, nil]

    [method: "#{options.method}", coefficients: "#{options.coefficients}"] ++
      [bidirectional: Options.both_ways?(options), reverse: options.reverse, dt_softplus: options.dt_softplus] ++
      for {name, limit} <- [dt_limit_min: min, dt_limit_max: max], is_number(limit), do: {name, limit * 1.0}
  end

  @doc "The value of an attribute as it is written."
  def word(flag) when is_boolean(flag), do: if(flag, do: 1, else: 0)
  def word(other), do: other
end
