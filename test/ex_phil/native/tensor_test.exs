defmodule ExPhil.Native.TensorTest do
  use ExUnit.Case, async: true

  import Bitwise
  doctest ExPhil.Native.Tensor

  alias ExPhil.Native.{SelectiveScan, Tensor}

  test "numbers survive every type that can hold them" do
    for {type, numbers} <- [
          {:f64, [0.1, -1.0e300, :nan, :infinity, :neg_infinity]},
          {:f32, [0.5, -1024.0, :nan, :infinity, :neg_infinity]},
          {:f16, [0.5, -1024.0, :nan, :infinity, :neg_infinity]},
          {:bf16, [0.5, -1024.0, :nan, :infinity, :neg_infinity]},
          {:s8, [-128, 127]},
          {:u8, [0, 255]},
          {:s32, [-2_147_483_648, 2_147_483_647]},
          {:s64, [-0x8000000000000000, 0x7FFFFFFFFFFFFFFF]},
          {:u64, [0, 0xFFFFFFFFFFFFFFFF]}
        ] do
      assert numbers |> Tensor.from_list(type) |> Tensor.to_list() == numbers
    end
  end

  test "bf16 rounds to the nearest, ties to even" do
    assert Tensor.from_list([1 + 1 / 256, 1 + 3 / 256, 1 + 1.1 / 256], :bf16) |> Tensor.to_list() ==
             [1.0, 1 + 4 / 256, 1 + 2 / 256]

    # Beside a tie by less than a single has.
    for sign <- [1, -1],
        tie <- [1 + 1 / 256, 1 + 3 / 256, 2.0 ** -133 * 1.5],
        {beside, nearest} <- [{-1, 0}, {1, 1}] do
      ulp = if tie > 1, do: 2 / 256, else: 2.0 ** -133
      below = Float.floor(tie / ulp) * ulp
      number = sign * tie * (1 + beside * 2.0 ** -40)
      assert Tensor.from_list([number], :bf16) |> Tensor.to_list() == [sign * (below + nearest * ulp)]
    end

    assert Tensor.from_list([1 <<< 60, (1 <<< 60) + (1 <<< 52), (1 <<< 60) + (1 <<< 52) + 1], :bf16)
           |> Tensor.to_list() ==
             [2.0 ** 60, 2.0 ** 60, 2.0 ** 60 + 2.0 ** 53]
  end

  test "what rounds to the greatest number of a type is that, and what is beyond is refused" do
    for {type, greatest, below, beyond} <- [
          {:f16, 65_504.0, 65_519.9, 65_520},
          {:bf16, 255 * 2.0 ** 120, 3.395e38, 3.397e38},
          {:f32, 3.4028234663852886e38, 3.4028235e38, 3.4028236e38},
          {:f64, 1.7976931348623157e308, 1.7976931348623157e308, Integer.pow(2, 1024)}
        ],
        sign <- [1, -1] do
      assert Tensor.to_list(Tensor.from_list([sign * below], type)) == [sign * greatest]
      message = "expected a number of type #{type}, got: #{inspect(sign * beyond)}"
      assert_raise ArgumentError, message, fn -> Tensor.from_list([sign * beyond], type) end
    end
  end

  test "a short type is the long one" do
    assert Tensor.zeros({3}, :bf16) == Tensor.zeros({3}, {:bf, 16})
  end

  test "a nested list keeps its shape" do
    list = [[[1, 2]], [[3, 4]], [[5, 6]]]
    tensor = Tensor.from_list(list, :s32)
    assert Tensor.shape(tensor) == {3, 1, 2}
    assert Tensor.to_list(tensor) == list
    assert Tensor.to_list(Tensor.zeros({2, 0})) == [[], []]
    assert Tensor.to_list(Tensor.zeros({0, 3})) == []
  end

  test "of an empty tensor, no more lists are made than there is memory for" do
    many = Tensor.zeros({1 <<< 40, 0})
    assert inspect(many) == "#ExPhil.Native.Tensor<f32[1099511627776][0] []>"
    assert inspect(many, limit: :infinity) == inspect(many)
    words = "expected an empty tensor to be of at most 1048576 lists, got: {1099511627776, 0}"
    assert_raise ArgumentError, words, fn -> Tensor.to_list(many) end
    assert_raise ArgumentError, ~r/at most 1048576 lists/, fn -> Tensor.to_list(Tensor.zeros({1024, 1025, 0})) end
    assert Tensor.to_list(Tensor.zeros({0, 1 <<< 40})) == []
    assert Tensor.to_list(Tensor.zeros({2, 0, 1 <<< 40})) == [[], []]
  end

  test "a tensor without axes is a number" do
    tensor = Tensor.from_binary(<<1.5::float-32-native>>, :f32, {})
    assert Tensor.to_list(tensor) == 1.5
    assert inspect(tensor) == "#ExPhil.Native.Tensor<f32 1.5>"
    assert_raise ArgumentError, ~r/to hold 4 bytes, got: 0 bytes/, fn -> Tensor.from_binary(<<>>, :f32, {}) end
  end

  test "inspect shows small tensors whole and large ones by their first numbers" do
    assert inspect(Tensor.from_list([[1, 2], [3, 4]], :u8)) == "#ExPhil.Native.Tensor<u8[2][2] [[1, 2], [3, 4]]>"

    assert inspect(Tensor.from_list([97, 98], :s32)) == "#ExPhil.Native.Tensor<s32[2] [97, 98]>"

    assert inspect(Tensor.zeros({9, 512}), limit: 3) ==
             "#ExPhil.Native.Tensor<f32[9][512] [0.0, 0.0, 0.0, ...]>"

    for limit <- [4, :infinity] do
      assert inspect(Tensor.zeros({2, 2}, :u8), limit: limit) == "#ExPhil.Native.Tensor<u8[2][2] [[0, 0], [0, 0]]>"
    end
  end

  test "zeros that no memory has are refused, and the next are there" do
    assert_raise ExPhil.Native.Error, ~r/out of memory/, fn -> Tensor.zeros({2 ** 57}) end
    assert %{data: <<0, _::binary>> = data} = Tensor.zeros({2 ** 24 + 1})
    assert byte_size(data) == 2 ** 26 + 4
  end

  test "large zeros are zeros where there was a result" do
    ones = &Tensor.from_binary(:binary.copy(<<1.0::float-32-native>>, Tuple.product(&1)), :f32, &1)
    {x, a} = {ones.({4096, 1, 4097}), ones.({4097, 1})}

    # The allocator has what it was given back, if not at once.
    for _ <- 1..3 do
      assert byte_size(SelectiveScan.scan(x, x, a, a, a).data) > 2 ** 26
      :erlang.garbage_collect()
      assert :binary.match(Tensor.zeros({4096, 1, 4097}).data, <<0x3F>>) == :nomatch
      :erlang.garbage_collect()
    end
  end

  describe "refuses" do
    for {what, call, message} <- [
          {"a binary of the wrong length", quote(do: Tensor.from_binary(<<0, 0, 0>>, :f32, {1})),
           ~r/shape \{1\} and type f32 to hold 4 bytes, got: 3 bytes/},
          {"what is no binary", quote(do: Tensor.from_binary([1.0], :f32, {1})),
           ~r/data to be a binary, got: \[1.0\]/},
          {"a bitstring", quote(do: Tensor.from_binary(<<1::7>>, :f32, {1})), ~r/data to be a binary/},
          {"an unknown type", quote(do: Tensor.from_binary(<<0>>, {:f, 8}, {1})), ~r/got: \{:f, 8\}/},
          {"a shape that is none", quote(do: Tensor.from_binary(<<0>>, :u8, [1])),
           ~r/a shape such as .* got: \[1\]/},
          {"a negative axis", quote(do: Tensor.zeros({2, -1})), ~r/a shape such as .* got: \{2, -1\}/},
          {"a ragged list", quote(do: Tensor.from_list([[1], [1, 2]])), ~r/same length/},
          {"a half nested list", quote(do: Tensor.from_list([[1], 2])), ~r/same length/},
          {"a list beside numbers", quote(do: Tensor.from_list([1, [2, 3]])),
           ~r/same length, got: \[1, \[2, 3\]\]/},
          {"a list beside numbers, within", quote(do: Tensor.from_list([[1, 2], [3, [4]]])),
           ~r/same length, got: \[3, \[4\]\]/},
          {"more than an unsigned integer has", quote(do: Tensor.from_list([256], :u8)), ~r/type u8, got: 256/},
          {"less than an unsigned integer has", quote(do: Tensor.from_list([-1], :u8)), ~r/type u8, got: -1/},
          {"more than an integer has", quote(do: Tensor.from_list([2_147_483_648], :s32)),
           ~r/type s32, got: 2147483648/},
          {"less than an integer has", quote(do: Tensor.from_list([-129], :s8)), ~r/type s8, got: -129/},
          {"what is no number", quote(do: Tensor.from_list([:one])), ~r/a number, :nan, .* got: :one/},
          {"a fraction as an integer", quote(do: Tensor.from_list([0.5], :s8)), ~r/type s8, got: 0.5/},
          {"an improper list", quote(do: Tensor.from_list([1 | 2])), ~r/a list of numbers, got: \[1 \| 2\]/},
          {"an improper list within", quote(do: Tensor.from_list([[1], [1 | 2]])),
           ~r/a list of numbers, got: \[1 \| 2\]/},
          {"what is no list", quote(do: Tensor.from_list(1.0)), ~r/a list of numbers, got: 1.0/},
          {"more zeros than have addresses", quote(do: Tensor.zeros({2, 2 ** 61}, :u16)),
           ~r/less than 2\^63 bytes, got: \{2, 2305843009213693952\} and u16/},
          {"what is no tensor", quote(do: Tensor.to_list(nil)), ~r/an ExPhil.Native.Tensor, got: nil/},
          {"half a tensor", quote(do: Tensor.shape(Map.delete(Tensor.zeros({2}), :shape))),
           ~r/an ExPhil.Native.Tensor, got: /},
          {"a tensor that lacks bytes", quote(do: Tensor.to_list(%{Tensor.zeros({2}) | data: <<0>>})),
           ~r/to hold 8 bytes, got: 1 bytes/},
          {"what is no path", quote(do: Tensor.load_safetensors(nil)),
           ~r/the path of a safetensors file, got: nil/}
        ] do
      test what do
        assert_raise ArgumentError, unquote(Macro.escape(message)), fn -> unquote(call) end
      end
    end
  end

  describe "safetensors" do
    @describetag :tmp_dir

    test "by name, shape and contents", %{tmp_dir: dir} do
      path =
        write(
          dir,
          ~s({"half":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},) <>
            ~s("__metadata__":{"made":"here"},"bytes":{"dtype":"U8","shape":[1,3],"data_offsets":[4,7]}}),
          <<0x3F80::16-native, 0xC000::16-native, 7, 8, 9>>
        )

      tensors = Tensor.load_safetensors(path)
      assert Tensor.to_list(tensors["half"]) == [1.0, -2.0]
      assert tensors["bytes"] == Tensor.from_list([[7, 8, 9]], :u8)
      assert map_size(tensors) == 2
      assert Tensor.safetensors_metadata(path) == %{"made" => "here"}
      assert Tensor.load_safetensors(String.to_charlist(path)) == tensors
    end

    test "of every type", %{tmp_dir: dir} do
      types = [
        {"F64", {:f, 64}},
        {"F32", {:f, 32}},
        {"F16", {:f, 16}},
        {"BF16", {:bf, 16}},
        {"I64", {:s, 64}},
        {"I32", {:s, 32}},
        {"I16", {:s, 16}},
        {"I8", {:s, 8}},
        {"U64", {:u, 64}},
        {"U32", {:u, 32}},
        {"U16", {:u, 16}},
        {"U8", {:u, 8}},
        {"BOOL", {:u, 8}}
      ]

      entries =
        for {{name, {_, bits}}, at} <- Enum.with_index(types) do
          ~s("#{name}":{"dtype":"#{name}","shape":[#{div(64, bits)}],"data_offsets":[#{8 * at},#{8 * at + 8}]})
        end

      contents = for {_, at} <- Enum.with_index(types), do: <<at::64>>
      tensors = Tensor.load_safetensors(write(dir, "{#{Enum.join(entries, ",")}}", contents))
      assert map_size(tensors) == length(types)

      for {{name, {_, bits} = type}, data} <- Enum.zip(types, contents) do
        assert tensors[name] == Tensor.from_binary(data, type, {div(64, bits)})
      end
    end

    test "a number without axes", %{tmp_dir: dir} do
      path = write(dir, ~s({"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}), <<7::64-little>>)
      assert %{"step" => %Tensor{type: {:s, 64}, shape: {}} = step} = Tensor.load_safetensors(path)
      assert Tensor.to_list(step) == 7
    end

    test "a damaged file says what is wrong with it", %{tmp_dir: dir} do
      beyond = ~s({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})
      unknown = ~s({"x":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}})

      for {header, data, words} <- [
            {beyond, <<0, 0, 0, 0>>, "file to be in the safetensors format"},
            {unknown, <<0>>, "F8_E5M2"},
            {"no json", <<>>, "file to be in the safetensors format"}
          ] do
        path = write(dir, header, data)
        error = assert_raise ArgumentError, fn -> Tensor.load_safetensors(path) end
        assert error.message =~ path
        assert error.message =~ words
      end

      empty = Path.join(dir, "empty")
      File.write!(empty, "")
      assert_raise ArgumentError, fn -> Tensor.load_safetensors(empty) end
    end

    test "an absent file", %{tmp_dir: dir} do
      assert_raise File.Error, fn -> Tensor.load_safetensors(Path.join(dir, "absent")) end
    end

    defp write(dir, header, data) do
      path = Path.join(dir, "tensors.safetensors")
      File.write!(path, [<<byte_size(header)::64-little>>, header, data])
      path
    end
  end
end
