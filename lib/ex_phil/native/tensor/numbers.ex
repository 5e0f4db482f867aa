defmodule ExPhil.Native.Tensor.Numbers do
  @moduledoc false
  # Numbers to and from the bytes of a type. The BEAM has no floats that are not numbers: they are the atoms of Nx.
  import Bitwise

  # From here on a number would be rounded to infinity, for which there is an atom.
  @infinite %{
    {:f, 16} => (1 <<< 16) - (1 <<< 4),
    {:bf, 16} => (1 <<< 128) - (1 <<< 119),
    {:f, 32} => (1 <<< 128) - (1 <<< 103),
    {:f, 64} => (1 <<< 1024) - (1 <<< 970)
  }

  @doc "Whether a number is one of a real type once it is rounded."
  defguard is_finite(number, type) when is_number(number) and abs(number) < :erlang.map_get(type, @infinite)

  # Among the integers of so many bits, of which this is the least.
  defguardp is_among(number, least, bits)
            when is_integer(number) and number >= least and number < least + (1 <<< bits)

  def bytes({_class, bits}), do: div(bits, 8)

  def decode(data, {:u, bits}), do: for(<<x::size(bits)-unsigned-native <- data>>, do: x)
  def decode(data, {:s, bits}), do: for(<<x::size(bits)-signed-native <- data>>, do: x)
  def decode(data, {:f, bits}), do: for(<<x::bits-size(bits) <- data>>, do: float(x, bits))

  # The upper half of a single.
  def decode(data, {:bf, 16}), do: for(<<x::16-native <- data>>, do: float(<<x <<< 16::32-native>>, 32))

  def encode(number, {:u, bits}) when is_among(number, 0, bits), do: <<number::size(bits)-unsigned-native>>

  def encode(number, {:s, bits}) when is_among(number, -(1 <<< (bits - 1)), bits),
    do: <<number::size(bits)-signed-native>>

  def encode(number, {:f, bits} = type) when is_finite(number, type), do: <<number::float-size(bits)-native>>
  def encode(name, {:f, bits}) when is_atom(name), do: <<special(name, bits)::size(bits)-native>>
  def encode(name, {:bf, 16}) when is_atom(name), do: <<special(name, 32) >>> 16::16-native>>

  # Rounded to the nearest, ties to even.
  def encode(number, {:bf, 16} = type) when is_finite(number, type) do
    single = odd_single(number)
    <<(single + 0x7FFF + (single >>> 16 &&& 1)) >>> 16::16-native>>
  end

  def encode(other, {class, bits}) do
    raise ArgumentError, "expected a number of type #{class}#{bits}, got: #{inspect(other)}"
  end

  # The bits of a single that a number can be rounded from again: where it is between two singles, of these the one whose last bit
  # is 1 (round to odd: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). The nearest may be a tie, which
  # the number is not.
  defp odd_single(number) do
    <<bits::32>> = <<number::float-32>>
    <<nearest::float-32>> = <<bits::32>>

    cond do
      nearest == number -> bits
      abs(nearest) > abs(number) -> bits - 1 ||| 1
      true -> bits ||| 1
    end
  end

  defp float(bytes, bits) do
    case bytes do
      <<x::float-size(bits)-native>> -> x
      <<x::size(bits)-native>> -> name(x, bits)
    end
  end

  defp name(pattern, bits) do
    sign = 1 <<< (bits - 1)

    cond do
      pattern == infinity(bits) -> :infinity
      pattern == (infinity(bits) ||| sign) -> :neg_infinity
      true -> :nan
    end
  end

  defp special(:infinity, bits), do: infinity(bits)
  defp special(:neg_infinity, bits), do: infinity(bits) ||| 1 <<< (bits - 1)
  # The quiet one, with the upper bit of the mantissa set.
  defp special(:nan, bits), do: infinity(bits) ||| 1 <<< (mantissa(bits) - 1)

  defp special(other, bits) do
    raise ArgumentError,
          "expected a number, :nan, :infinity or :neg_infinity for #{bits} bits, got: #{inspect(other)}"
  end

  # All bits of the exponent set, none of the mantissa.
  defp infinity(bits), do: ((1 <<< (bits - 1 - mantissa(bits))) - 1) <<< mantissa(bits)

  defp mantissa(16), do: 10
  defp mantissa(32), do: 23
  defp mantissa(64), do: 52
end
