defmodule ExPhil.Native.SelectiveScan.Options do
  @moduledoc false
  # The options of a call, and what its tensors are called. Here it is seen that every option is known and makes sense for itself;
  # whether it does with the tensors is decided in one place, the native `Problem`.
  alias ExPhil.Native.{Error, Tensor}
  alias ExPhil.Native.SelectiveScan.Backend

  defstruct method: :zoh,
            coefficients: :exact,
            bidirectional: nil,
            reverse: false,
            dt_softplus: false,
            dt_limit: nil,
            d: nil,
            z: nil,
            dt_bias: nil,
            initial_state: nil,
            seq_idx: nil,
            dfinal_state: nil,
            boundary_states: nil,
            backend: nil,
            algorithm: nil

  @methods [:zoh, :zoh_exact, :foh, :bilinear, :poly, :highorder, :rk4]
  @with_taylor [:foh, :poly, :highorder]
  @optional [:d, :z, :dt_bias, :initial_state, :seq_idx]
  @of_backward [:dfinal_state, :boundary_states]
  @coefficients [:exact, :taylor]
  @two_numbers "two numbers, integers within 64 bits"
  @algorithms [:blelloch, :hillis_steele, :cumsum, :sequential]
  @tensors @optional ++ @of_backward
  @backward [
    :method,
    :coefficients,
    :bidirectional,
    :reverse,
    :dt_softplus,
    :dt_limit,
    :backend,
    :algorithm | @tensors
  ]
  @scan @backward -- @of_backward
  # The state of a step is an argument.
  @step @scan -- [:initial_state]

  @doc "Reads the options of a scan, `form` `:scan`, of a step, `:step`, or of a backward pass, `:backward`."
  def read!([], _form), do: %__MODULE__{}

  def read!(opts, form) do
    options = opts |> among!(known(form)) |> read_each()
    coefficients!(options)
    options
  end

  @doc "The names of the options of each."
  def known(:scan), do: @scan
  def known(:step), do: @step
  def known(:backward), do: @backward

  @doc "Options as they are, or `ArgumentError` where they are no keyword list, or have another name than these."
  def among!(opts, names) do
    for {name, _value} <- keywords!(opts), name not in names do
      Error.wrong!("options", "be among #{names |> Enum.uniq() |> Enum.sort() |> Error.list()}", name)
    end

    opts
  end

  @doc "Options as they are, or `ArgumentError` where they are no keyword list."
  def keywords!(opts) do
    if not Keyword.keyword?(opts), do: Error.wrong!("options", "be a keyword list", opts)
    opts
  end

  defp read_each([]), do: %__MODULE__{}

  # The first of several counts, as with `Keyword.get/2`.
  defp read_each([{name, value} | rest]), do: %{read_each(rest) | name => value!(name, value)}

  defp coefficients!(%{method: method, coefficients: :taylor}) when method not in @with_taylor do
    Error.wrong!(:coefficients, "be :exact for method #{inspect(method)}, which has no truncated series", :taylor)
  end

  defp coefficients!(_options), do: :ok

  defp value!(name, nil) when name in @tensors, do: nil
  defp value!(name, value) when name in @tensors, do: Tensor.given!(value, name)

  defp value!(:method, value) when value in @methods, do: value
  defp value!(:method, value), do: Error.wrong!(:method, "be one of #{Error.list(@methods)}", value)

  defp value!(:coefficients, value) when value in @coefficients, do: value

  defp value!(:coefficients, value),
    do: Error.wrong!(:coefficients, "be one of #{Error.list(@coefficients)}", value)

  # `nil` is for the method to decide.
  defp value!(:bidirectional, value) when is_boolean(value) or is_nil(value), do: value
  defp value!(:bidirectional, value), do: Error.wrong!(:bidirectional, "be a boolean or nil", value)

  defp value!(name, value) when name in [:reverse, :dt_softplus] do
    if is_boolean(value), do: value, else: Error.wrong!(name, "be a boolean", value)
  end

  defp value!(:dt_limit, nil), do: nil

  defp value!(:dt_limit, {min, max} = limit) do
    if not (number?(min) and number?(max)), do: Error.wrong!(:dt_limit, "be {min, max}, #{@two_numbers}", limit)

    # No step is within these.
    if min == :infinity or max == :neg_infinity do
      Error.wrong!(:dt_limit, "be {min, max} with min below :infinity and max above :neg_infinity", limit)
    end

    limit
  end

  defp value!(:dt_limit, other), do: Error.wrong!(:dt_limit, "be {min, max}, #{@two_numbers}", other)

  defp value!(:backend, value), do: Backend.preference!(value)

  defp value!(:algorithm, value) when value in [nil | @algorithms], do: value

  defp value!(:algorithm, value), do: Error.wrong!(:algorithm, "be one of #{Error.list(@algorithms)}", value)

  @doc "All methods, in the order of the documentation."
  def methods, do: @methods

  @doc "The methods that have a truncated series."
  def with_taylor, do: @with_taylor

  @doc "The names of the tensors that a scan can be without, in the order of the native library."
  def optional, do: @optional

  @doc "Whether a scan goes both ways: as it was told, else as the method is defined."
  def both_ways?(%{bidirectional: nil, method: method}), do: method == :poly
  def both_ways?(%{bidirectional: both_ways?}), do: both_ways?

  @doc "How many ways that is."
  def directions(options), do: if(both_ways?(options), do: 2, else: 1)

  @doc "The tensors that a scan is given, by their names, in the order of the native library."
  def tensors!({x, dt, a, b, c}, options) do
    required = for {name, tensor} <- [x: x, dt: dt, a: a, b: b, c: c], do: {name, Tensor.given!(tensor, name)}
    required ++ present(options, @optional)
  end

  @doc "What flows into a backward pass, by its names."
  def output_gradients!(dy, options), do: [{:dy, Tensor.given!(dy, :dy)} | present(options, [:dfinal_state])]

  defp present(options, names), do: for(name <- names, tensor = Map.fetch!(options, name), do: {name, tensor})

  @doc "The same options, their tensors made those of the native library."
  def cast!(options) do
    cast = fn name ->
      with tensor when tensor != nil <- Map.fetch!(options, name), do: Tensor.cast!(tensor, name)
    end

    Map.merge(options, Map.new(@tensors, &{&1, cast.(&1)}))
  end

  # Integers go as far as those of the native library.
  defp number?(value) when is_integer(value), do: value in -(2 ** 63)..(2 ** 63 - 1)
  defp number?(value), do: is_float(value) or value in [:infinity, :neg_infinity]
end
