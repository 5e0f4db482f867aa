defmodule ExPhil.Native.Tensor do
  @moduledoc """
  Numbers in a binary, with their type and shape: what the scan reads and writes.

  Types are written as in Nx: `{:f, 32}`, `{:bf, 16}`, `{:s, 64}`, …, or short `:f32`, `:bf16`, `:s64`. The shape is
  a tuple, `{}` for a single number; the last axis lies together in memory. Numbers are in the byte order of the machine. A complex tensor has
  a trailing axis of 2, real and imaginary part.

  Where Nx is there, `from_nx/1` and `to_nx/1` convert; the functions of `ExPhil.Native.SelectiveScan` take and
  return Nx tensors without being asked to.
  """
  alias ExPhil.Native.{Error, Nif}
  # Not used where Nx is not.
  alias ExPhil.Native.SelectiveScan.{Check, Options}, warn: false
  alias ExPhil.Native.Tensor.Numbers

  @enforce_keys [:type, :shape, :data]
  defstruct [:type, :shape, :data]

  @type type :: {:f, 16 | 32 | 64} | {:bf, 16} | {:s | :u, 8 | 16 | 32 | 64}
  @type shape :: tuple
  @type t :: %__MODULE__{type: type, shape: shape, data: binary}

  @types for {class, sizes} <- [f: [16, 32, 64], bf: [16], s: [8, 16, 32, 64], u: [8, 16, 32, 64]],
             bits <- sizes,
             do: {class, bits}
  @short_types Map.new(@types, fn {class, bits} -> {:"#{class}#{bits}", {class, bits}} end)

  # Bytes that memory can have, and those from which on it is asked for with care.
  @most_bytes 2 ** 63
  @large 2 ** 26

  # Lists that are empty take memory, too.
  @most_lists 2 ** 20

  @doc """
  A tensor over a binary, which is not copied.

  ## Examples

      iex> ExPhil.Native.Tensor.from_binary(<<1.0::float-32-native, 2.0::float-32-native>>, :f32, {1, 2})
      #ExPhil.Native.Tensor<f32[1][2] [[1.0, 2.0]]>

  ## Error cases

      iex> ExPhil.Native.Tensor.from_binary(<<0, 0>>, :f32, {1, 2})
      ** (ArgumentError) expected data of shape {1, 2} and type f32 to hold 8 bytes, got: 2 bytes
  """
  @spec from_binary(binary, type | atom, shape) :: t
  def from_binary(data, type, shape) when is_binary(data) do
    type = type!(type)
    size = Numbers.bytes(type) * count(shape)

    if byte_size(data) != size do
      raise ArgumentError,
            "expected data of shape #{inspect(shape)} and type #{type_name(type)} to hold #{size} bytes, " <>
              "got: #{byte_size(data)} bytes"
    end

    %__MODULE__{type: type, shape: shape, data: data}
  end

  def from_binary(data, _type, _shape) do
    Error.wrong!(:data, "be a binary", data)
  end

  @doc """
  A tensor of the numbers in a list, nested as the shape is. `:nan`, `:infinity` and `:neg_infinity` stand for
  themselves in types that have them. A number beyond the range of the type is an error.

  ## Examples

      iex> ExPhil.Native.Tensor.from_list([[1, 2, 3], [4, 5, 6]])
      #ExPhil.Native.Tensor<f32[2][3] [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]>

  ## Error cases

      iex> ExPhil.Native.Tensor.from_list([[1, 2], [3]])
      ** (ArgumentError) expected every list of an axis to have the same length, got: [[1, 2], [3]]

      iex> ExPhil.Native.Tensor.from_list([300], :u8)
      ** (ArgumentError) expected a number of type u8, got: 300

      iex> ExPhil.Native.Tensor.from_list([1.0e39], :f32)
      ** (ArgumentError) expected a number of type f32, got: 1.0e39
  """
  @spec from_list(list, type | atom) :: t
  def from_list(list, type \\ {:f, 32})

  def from_list(list, type) when is_list(list) do
    type = type!(type)
    shape = nesting(list)
    data = for number <- List.flatten(list), into: <<>>, do: Numbers.encode(number, type)
    %__MODULE__{type: type, shape: List.to_tuple(shape), data: data}
  end

  def from_list(list, _type) do
    raise ArgumentError, "expected a list of numbers, got: #{inspect(list)}"
  end

  @doc """
  A tensor of zeros. Raises `ExPhil.Native.Error` where there is no memory for them.

  ## Examples

      iex> ExPhil.Native.Tensor.zeros({2, 2})
      #ExPhil.Native.Tensor<f32[2][2] [[0.0, 0.0], [0.0, 0.0]]>
  """
  @spec zeros(shape, type | atom) :: t
  def zeros(shape, type \\ {:f, 32}) do
    type = type!(type)
    size = Numbers.bytes(type) * count(shape)

    if size >= @most_bytes do
      raise ArgumentError,
            "expected a shape and type of less than 2^63 bytes, got: #{inspect(shape)} and #{type_name(type)}"
    end

    %__MODULE__{type: type, shape: shape, data: zero_bytes(size)}
  end

  # Where the BEAM has no memory for a binary of its own, it ends; native code is refused it.
  defp zero_bytes(size) when size > @large do
    case Nif.zeros(size) do
      {:ok, data} -> data
      {:error, {:unavailable, _}} -> <<0::size(size)-unit(8)>>
      {:error, reason} -> Error.raise!(reason)
    end
  end

  defp zero_bytes(size), do: <<0::size(size)-unit(8)>>

  @doc """
  The numbers as a binary, not copied.

  ## Examples

      iex> ExPhil.Native.Tensor.from_list([1, 2], :u8) |> ExPhil.Native.Tensor.to_binary()
      <<1, 2>>
  """
  @spec to_binary(t) :: binary
  def to_binary(tensor), do: ours!(tensor).data

  @doc """
  The numbers as a list, nested as the shape is, or the number itself where the shape is `{}`; what is no number as
  `:nan`, `:infinity` or `:neg_infinity`.

  ## Examples

      iex> ExPhil.Native.Tensor.from_list([[1.5, :nan]], :bf16) |> ExPhil.Native.Tensor.to_list()
      [[1.5, :nan]]

      iex> ExPhil.Native.Tensor.zeros({}) |> ExPhil.Native.Tensor.to_list()
      0.0

  ## Error cases

  Where an axis is empty, so are the lists that the axes before it are made of; of more than a million nothing is made:

      iex> ExPhil.Native.Tensor.zeros({2_000_000, 0}) |> ExPhil.Native.Tensor.to_list()
      ** (ArgumentError) expected an empty tensor to be of at most 1048576 lists, got: {2000000, 0}
  """
  @spec to_list(t) :: list | number | :nan | :infinity | :neg_infinity
  def to_list(tensor) do
    %{type: type, shape: shape, data: data} = ours!(tensor)
    axes = Tuple.to_list(shape)

    if 0 in axes and axes |> Enum.take_while(&(&1 > 0)) |> Enum.product() > @most_lists do
      Error.wrong!("an empty tensor", "be of at most #{@most_lists} lists", shape)
    end

    nest(Numbers.decode(data, type), axes)
  end

  defp nest([number], []), do: number
  defp nest([], [0 | _]), do: []
  defp nest([], [count | inner]), do: List.duplicate(nest([], inner), count)

  defp nest(numbers, [_ | inner]), do: inner |> Enum.reverse() |> Enum.reduce(numbers, &Enum.chunk_every(&2, &1))

  @doc """
  The shape, a tuple.

  ## Examples

      iex> ExPhil.Native.Tensor.zeros({2, 60, 16}) |> ExPhil.Native.Tensor.shape()
      {2, 60, 16}
  """
  @spec shape(t) :: shape
  def shape(tensor), do: ours!(tensor).shape

  @doc """
  The type, as Nx writes it.

  ## Examples

      iex> ExPhil.Native.Tensor.zeros({2}, :bf16) |> ExPhil.Native.Tensor.type()
      {:bf, 16}
  """
  @spec type(t) :: type
  def type(tensor), do: ours!(tensor).type

  # A tensor of ours whose data is as long as type and shape say.
  defp ours!(%__MODULE__{type: type, shape: shape, data: data}), do: from_binary(data, type, shape)
  defp ours!(other), do: raise(ArgumentError, "expected an ExPhil.Native.Tensor, got: #{inspect(other)}")

  @doc """
  The tensors of a safetensors file, by their names. They share the memory of the file, which is read once.

  Raises `File.Error` where the file cannot be read, `ArgumentError` where it is not in the format or holds a type that no
  tensor here can have, and `ExPhil.Native.Error` where the native library, which reads the format, is not loaded.

      iex> ExPhil.Native.Tensor.load_safetensors("examples/data/digits_scan.safetensors")["scan.0.A"]
      ...> |> ExPhil.Native.Tensor.shape()
      {128, 16}
  """
  @spec load_safetensors(Path.t()) :: %{String.t() => t}
  def load_safetensors(path) do
    {file, layout, _metadata} = read_safetensors(path)

    for {name, type, axes, offset, length} <- layout, into: %{} do
      {name, from_binary(binary_part(file, offset, length), type, List.to_tuple(axes))}
    end
  end

  @doc """
  The metadata of a safetensors file: free text by names, empty where it has none. Raises as `load_safetensors/1`
  does.
  """
  @spec safetensors_metadata(Path.t()) :: %{String.t() => String.t()}
  def safetensors_metadata(path) do
    {_file, _layout, metadata} = read_safetensors(path)
    metadata
  end

  defp read_safetensors(path) when is_binary(path) or is_list(path) do
    file = File.read!(path)

    case Nif.safetensors_layout(file) do
      {:ok, layout, metadata} -> {file, layout, metadata}
      {:error, {kind, message}} -> Error.raise!({kind, "#{path}: #{message}"})
    end
  end

  defp read_safetensors(other) do
    raise ArgumentError, "expected the path of a safetensors file, got: #{inspect(other)}"
  end

  if Code.ensure_loaded?(Nx) do
    @complex_types [{:c, 64}, {:c, 128}]

    @doc """
    An Nx tensor as one of ours. Complex numbers become a trailing axis of 2. Raises `ArgumentError` where it is none, where it is
    vectorized, of a type that no tensor here can have, or without numbers, as a template or an expression is, and where its fields
    are not what Nx makes them.
    """
    @spec from_nx(Nx.Tensor.t()) :: t
    def from_nx(%Nx.Tensor{} = tensor) do
      %{type: type, vectorized_axes: axes} = numbers!(tensor, :tensor)
      if axes != [], do: raise(ArgumentError, "expected a tensor without vectorized axes, got: #{inspect(axes)}")
      if type not in @complex_types, do: type!(type)
      of_nx(tensor, Nx.to_binary(tensor))
    end

    def from_nx(other), do: Error.wrong!(:tensor, "be an Nx.Tensor", other)

    # The same as `whole!/2`, of a tensor whose numbers are there: no expression.
    @doc false
    @spec numbers!(Nx.Tensor.t(), atom | String.t()) :: Nx.Tensor.t()
    def numbers!(%{data: %Nx.Defn.Expr{}} = tensor, name), do: Error.wrong!(name, "hold numbers", tensor)
    def numbers!(tensor, name), do: whole!(tensor, name)

    # What a caller gave as `name`, if it is what Nx makes: everybody can write another shape into a struct, and Nx would find
    # out at some place or other, or never. Of a backend other than Nx's own, which has the numbers, nobody knows how many there are.
    @doc false
    @spec whole!(Nx.Tensor.t(), atom | String.t()) :: Nx.Tensor.t()
    def whole!(
          %{type: {class, bits}, shape: shape, names: names, vectorized_axes: axes, data: data} = tensor,
          name
        )
        when is_atom(class) and is_integer(bits) and is_tuple(shape) and length(names) == tuple_size(shape) and
               is_list(axes) do
      sizes = if axes == [], do: Tuple.to_list(shape), else: sizes!(axes, name) ++ Tuple.to_list(shape)
      if not positive?(sizes), do: Error.wrong!(name, "have a shape that is a tuple of positive integers", shape)
      held!(data, sizes, bits, tensor, name)
      tensor
    end

    def whole!(%{type: type, shape: shape, names: names, vectorized_axes: axes}, name) do
      if not match?({class, bits} when is_atom(class) and is_integer(bits), type),
        do: Error.wrong!(name, "have a type such as {:f, 32}", type)

      if not is_tuple(shape), do: Error.wrong!(name, "have a shape that is a tuple of positive integers", shape)
      if not is_list(axes), do: Error.wrong!(name, "have vectorized axes that are a list", axes)
      Error.wrong!(name, "have a list of as many names as axes, #{tuple_size(shape)}", names)
    end

    defp sizes!(axes, name) do
      if not Keyword.keyword?(axes), do: Error.wrong!(name, "have vectorized axes with names and sizes", axes)
      Keyword.values(axes)
    end

    defp positive?([size | sizes]) when is_integer(size) and size > 0, do: positive?(sizes)
    defp positive?(rest), do: rest == []

    defp held!(%Nx.BinaryBackend{state: state}, sizes, bits, _tensor, name) do
      expected = Enum.product(sizes) * bits

      if not is_bitstring(state) or bit_size(state) != expected do
        got = if is_bitstring(state), do: "#{byte_size(state)} bytes", else: inspect(state)
        raise ArgumentError, "expected #{name} to hold #{div(expected + 7, 8)} bytes, got: #{got}"
      end
    end

    defp held!(%Nx.TemplateBackend{}, _sizes, _bits, tensor, name), do: Error.wrong!(name, "hold numbers", tensor)

    defp held!(%backend{}, _sizes, _bits, _tensor, name) do
      if not (Code.ensure_loaded?(backend) and function_exported?(backend, :to_binary, 2)),
        do: Error.wrong!(name, "have data that a backend of Nx holds", backend)
    end

    defp held!(other, _sizes, _bits, _tensor, name),
      do: Error.wrong!(name, "have data that a backend of Nx holds", other)

    # Type and shape of one of Nx over other data.
    @doc false
    @spec of_nx(Nx.Tensor.t(), binary | non_neg_integer) :: %__MODULE__{}
    def of_nx(%{type: {:c, bits}, shape: shape}, data) do
      %__MODULE__{type: {:f, div(bits, 2)}, shape: Tuple.insert_at(shape, tuple_size(shape), 2), data: data}
    end

    def of_nx(%{type: type, shape: shape}, data), do: %__MODULE__{type: type, shape: shape, data: data}

    @doc """
    The tensor as one of Nx; with `complex: true`, its trailing axis of 2 as complex numbers. Raises `ArgumentError` where there is
    no such axis, or the type is neither `f32` nor `f64`, and where an axis is empty, which Nx has none of.
    """
    @spec to_nx(t, keyword) :: Nx.Tensor.t()
    def to_nx(tensor, opts \\ []) do
      tensor = ours!(tensor)
      opts = Options.among!(opts, [:complex])
      complex? = Keyword.get(opts, :complex, false)
      if not is_boolean(complex?), do: Error.wrong!(:complex, "be a boolean", complex?)
      if tensor.data == "", do: Error.wrong!(:tensor, "have no empty axis, as one of Nx", tensor.shape)
      {type, shape} = if complex?, do: complex!(tensor), else: {tensor.type, tensor.shape}
      tensor.data |> Nx.from_binary(type) |> Nx.reshape(shape)
    end

    defp complex!(%{type: type, shape: shape}) do
      last = tuple_size(shape) - 1

      if type not in [{:f, 32}, {:f, 64}] or last < 0 or elem(shape, last) != 2 do
        raise ArgumentError,
              "expected a tensor of type f32 or f64 with a trailing axis of 2, got: #{type_name(type)} of #{inspect(shape)}"
      end

      {{:c, 2 * elem(type, 1)}, Tuple.delete_at(shape, last)}
    end

    # One of Nx without the names of its axes.
    @doc false
    @spec nameless(Nx.Tensor.t()) :: Nx.Tensor.t()
    def nameless(%{shape: shape} = tensor), do: %{tensor | names: List.duplicate(nil, tuple_size(shape))}
  end

  # What a caller gave as `name`: one of ours as it is, one of Nx converted.
  @doc false
  @spec cast!(term, atom) :: t
  def cast!(%__MODULE__{type: _, shape: _, data: _} = tensor, _name), do: tensor

  if Code.ensure_loaded?(Nx) do
    # `given!/2` has seen that it is whole.
    def cast!(%Nx.Tensor{} = tensor, _name), do: of_nx(tensor, Nx.to_binary(tensor))
  end

  def cast!(other, name) do
    Error.wrong!(name, "be an ExPhil.Native.Tensor or an Nx.Tensor", other)
  end

  # What a caller gave as `name`, as it is. One of Nx has a type that one of ours can have: only those can be checked
  # further. Complex ones are for the scan to judge.
  @doc false
  @spec given!(term, atom) :: t | struct
  if Code.ensure_loaded?(Nx) do
    def given!(%Nx.Tensor{} = tensor, name) do
      %{type: type} = whole!(tensor, name)
      if type not in @complex_types, do: Check.element!(name, type)
      tensor
    end
  end

  def given!(other, name), do: cast!(other, name)

  # `f32` for `{:f, 32}`.
  @doc false
  @spec type_name(type) :: String.t()
  def type_name({class, bits}), do: "#{class}#{bits}"

  defp type!(type) when type in @types, do: type
  defp type!(type) when is_map_key(@short_types, type), do: Map.fetch!(@short_types, type)

  defp type!(type) do
    known = Enum.map_join(@types, ", ", &type_name/1)
    raise ArgumentError, "expected a type such as {:f, 32} or :f32, one of #{known}, got: #{inspect(type)}"
  end

  defp count(shape) when is_tuple(shape) do
    axes = Tuple.to_list(shape)
    if Enum.all?(axes, &(is_integer(&1) and &1 >= 0)), do: Enum.product(axes), else: not_a_shape(shape)
  end

  defp count(shape), do: not_a_shape(shape)

  defp not_a_shape(shape) do
    raise ArgumentError, "expected a shape such as {2, 60, 16}, got: #{inspect(shape)}"
  end

  # The lengths of the axes; every list of an axis has the same.
  defp nesting(list) do
    if List.improper?(list),
      do: raise(ArgumentError, "expected a list of numbers, got: #{inspect(list, limit: 10)}")

    case list |> Enum.map(fn inner -> is_list(inner) && nesting(inner) end) |> Enum.uniq() do
      [] -> [0]
      [false] -> [length(list)]
      [inner] -> [length(list) | inner]
      _ -> ragged(list)
    end
  end

  defp ragged(list) do
    raise ArgumentError, "expected every list of an axis to have the same length, got: #{inspect(list, limit: 10)}"
  end
end
