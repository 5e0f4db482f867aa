if Code.ensure_loaded?(Nx.Pointer) do
  defmodule ExPhil.Native.FarBackend do
    # Tensors without numbers, at an address that is none.
    defstruct []

    def to_pointer(_tensor, mode: :local), do: %Nx.Pointer{kind: :local, address: 4096, data_size: 4}
    def to_binary(_tensor, _limit), do: raise("fetched")
    def negate(out, _tensor), do: %{out | data: %__MODULE__{}}
    def broadcast(out, _tensor, _shape, _axes), do: %{out | data: %__MODULE__{}}
  end

  defmodule ExPhil.Native.FarAwayTest do
    # What is decided from types and shapes of tensors whose numbers are not to be fetched.
    use ExUnit.Case, async: true

    import ExPhil.Native.Scans
    alias ExPhil.Native.{FarBackend, SelectiveScan, Tensor}
    alias ExPhil.Native.SelectiveScan.{InPlace, Options}

    defp far(%Tensor{} = tensor), do: %{Tensor.to_nx(tensor) | data: %FarBackend{}}

    test "the backend is told without them, for a scan and for a step" do
      inputs = random([])
      frames = Map.new([:x, :dt, :b, :c], &{&1, frame(inputs[&1], 0)})

      for inputs <- [inputs, Map.merge(inputs, frames)], opts <- [[], [backend: :cpu], [backend: :nx]] do
        told =
          for tensors <- [inputs, Map.new(inputs, fn {name, tensor} -> {name, far(tensor)} end)] do
            SelectiveScan.backend_for(tensors.x, tensors.dt, tensors.a, tensors.b, tensors.c, opts)
          end

        assert [same, same] = told
      end
    end

    test "boundary states of another call are refused, though a device has no use for any" do
      %{x: x, dt: dt, a: a, b: b, c: c, z: dy} = Map.new(random([]), fn {name, tensor} -> {name, far(tensor)} end)

      for {states, words} <- [
            {Tensor.zeros({2, 2, 1, 6, 4}), "to have shape {1, 2, 1, 6, 4}, got: {2, 2, 1, 6, 4}"},
            {far(Tensor.zeros({1, 2, 1, 6, 4}, :f64)), "to have type f32 where x has type f32, got: f64"}
          ] do
        options = Options.read!([boundary_states: states], :backward)

        assert_raise ArgumentError, "expected boundary_states " <> words, fn ->
          InPlace.backward(0, dy, {x, dt, a, b, c}, options)
        end
      end
    end
  end

  defmodule ExPhil.Native.InPlaceTest do
    # Nx tensors in the memory of a CUDA device are scanned where they lie. EXLA's backend cannot be had everywhere, so one of
    # the tests' own stands in for it; EXLA's differs in who allocates and in which stream writes.
    use ExUnit.Case

    import ExPhil.Native.Scans
    alias ExPhil.Native.{DeviceBackend, SelectiveScan, Tensor}

    @moduletag :device_memory

    defp on_device(%Tensor{} = tensor, opts \\ []),
      do: tensor |> Tensor.to_nx(opts) |> Nx.backend_copy(DeviceBackend)

    defp args(inputs), do: [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]

    # What the same call gives from and to the memory of the host, on the same device.
    defp same!(%Nx.Tensor{data: %DeviceBackend{}} = got, %Tensor{} = wanted),
      do: assert(Tensor.from_nx(got) == wanted)

    test "scans, steps and gradients stay on the device, with the bits of a call from the host" do
      for type <- [{:f, 32}, {:f, 64}, {:bf, 16}],
          method <- [:zoh, :poly],
          backend <- [[], [backend: :cuda], [backend: {:cuda, 0}]] do
        inputs = random(type: type, seq: 70, dim: 32)
        there = Map.new(inputs, fn {name, tensor} -> {name, on_device(tensor)} end)

        [ours, theirs] =
          for inputs <- [inputs, there], do: Keyword.new(Map.take(inputs, [:d, :z, :dt_bias, :initial_state]))

        opts = [method: method, dt_softplus: true]

        {y, state} = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [[backend: :cuda] ++ opts ++ ours])
        {got, got_state} = apply(SelectiveScan, :scan_with_state, args(there) ++ [backend ++ opts ++ theirs])
        same!(got, y)
        same!(got_state, state)
        same!(apply(SelectiveScan, :scan, args(there) ++ [backend ++ opts ++ theirs]), y)

        wanted =
          apply(
            SelectiveScan,
            :backward,
            [inputs.z | args(inputs)] ++ [[backend: :cuda, dfinal_state: inputs.initial_state] ++ opts ++ ours]
          )

        got =
          apply(
            SelectiveScan,
            :backward,
            [there.z | args(there)] ++ [backend ++ [dfinal_state: there.initial_state] ++ opts ++ theirs]
          )

        assert Map.keys(got) == Map.keys(wanted)
        for {name, tensor} <- wanted, do: same!(got[name], tensor)
        # What went in is as it was.
        for {name, tensor} <- inputs, do: same!(there[name], tensor)
      end

      inputs = random([])
      frames = Map.new([:x, :dt, :b, :c], &{&1, frame(inputs[&1], 0)})
      [x, dt, b, c] = for name <- [:x, :dt, :b, :c], do: frames[name]
      {y, state} = SelectiveScan.step(inputs.initial_state, x, dt, inputs.a, b, c, backend: :cuda)
      [there, x, dt, a, b, c] = for tensor <- [inputs.initial_state, x, dt, inputs.a, b, c], do: on_device(tensor)
      {got, got_state} = SelectiveScan.step(there, x, dt, a, b, c)
      same!(got, y)
      same!(got_state, state)
    end

    test "complex tensors and packed rows" do
      parts = %{
        a: complex_rates({6, 4}, {:f, 32}),
        b: normal({2, 7, 4, 2}, {:f, 32}),
        c: normal({6, 4, 2}, {:f, 32})
      }

      inputs = Map.merge(random([]), parts)
      seq_idx = Tensor.from_list([[0, 0, 1, 1, -1, 1, 2], [4, 4, 4, 4, 4, 5, 5]], :s32)
      there = Map.new(inputs, fn {name, tensor} -> {name, on_device(tensor, complex: is_map_key(parts, name))} end)
      {y, state} = apply(SelectiveScan, :scan_with_state, args(inputs) ++ [[seq_idx: seq_idx, backend: :cuda]])
      {got, got_state} = apply(SelectiveScan, :scan_with_state, args(there) ++ [[seq_idx: on_device(seq_idx)]])
      same!(got, y)
      assert Nx.type(got_state) == {:c, 64}
      same!(got_state, state)
    end

    test "where one tensor is not on the device, or the CPU is asked for, the call goes through the host" do
      inputs = random([])
      there = Map.new(inputs, fn {name, tensor} -> {name, on_device(tensor)} end)
      mixed = %{there | a: Tensor.to_nx(inputs.a)}

      for {tensors, opts} <- [{mixed, []}, {there, [backend: :cpu]}, {there, [backend: :nx]}] do
        assert %Nx.Tensor{data: %Nx.BinaryBackend{}} = got = apply(SelectiveScan, :scan, args(tensors) ++ [opts])
        assert distance(Tensor.from_nx(got), apply(SelectiveScan, :scan, args(inputs))) < 1.0e-6
      end
    end

    test "the backend is the device that the tensors lie on" do
      inputs = random([])
      there = Map.new(inputs, fn {name, tensor} -> {name, on_device(tensor)} end)

      for opts <- [[], [backend: :cuda], [backend: {:cuda, 0}]] do
        assert apply(SelectiveScan, :backend_for, args(there) ++ [opts]) ==
                 {{:cuda, 0}, "the tensors lie in the memory of CUDA device 0"}
      end

      assert {:cpu, "asked for by " <> _} = apply(SelectiveScan, :backend_for, args(there) ++ [[backend: :cpu]])
    end

    test "an address that is none of the device's is not followed" do
      inputs = random([])
      there = Map.new(inputs, fn {name, tensor} -> {name, on_device(tensor)} end)
      wanted = apply(SelectiveScan, :scan, args(there))
      tensors = there |> args() |> Enum.map(&Tensor.of_nx(&1, &1.data.address)) |> List.to_tuple()
      options = ExPhil.Native.SelectiveScan.Options.read!([], :scan)

      for wrong <- [0, 4096, 0xFFFFFFFFFFFFFFF0] do
        assert {:error, {:invalid_argument, message}} =
                 ExPhil.Native.Nif.forward_in_place(0, :scan, tensors, options, {wrong, nil}, there)

        assert message =~ "expected y to have"
      end

      assert Tensor.from_nx(apply(SelectiveScan, :scan, args(there))) == Tensor.from_nx(wanted)
    end

    test "a wrong call is told so before anything is computed" do
      there = Map.new(random([]), fn {name, tensor} -> {name, on_device(tensor)} end)

      assert_raise ArgumentError, "expected dt to have shape {2, 7, 6}, got: {6}", fn ->
        apply(SelectiveScan, :scan, args(%{there | dt: there.d}))
      end
    end
  end
end
