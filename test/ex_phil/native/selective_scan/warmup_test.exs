defmodule ExPhil.Native.SelectiveScan.WarmupTest do
  use ExUnit.Case, async: true

  import ExPhil.Native.Scans
  alias ExPhil.Native.SelectiveScan

  @sizes [x: {2, 7, 6}, a: {6, 4}]
  @all [d: true, z: true, dt_bias: true, initial_state: true]

  defp warmup(opts), do: SelectiveScan.warmup(@sizes ++ opts)

  test "makes ready for every kind of call" do
    for for <- [[:scan], [:step], [:backward], [:scan, :step, :backward]], type <- [:f32, :bf16, {:f, 64}] do
      assert warmup(for: for, type: type, backend: :cpu) == :ok
      assert warmup(@all ++ [for: for, type: type, dt_softplus: true, dt_limit: {0.0, 1.0}, backend: :cpu]) == :ok
    end

    assert warmup(seq_idx: true, bidirectional: true, method: :poly) == :ok
    assert warmup(d: {6}, z: {2, 7, 6}, initial_state: {2, 6, 4}, seq_idx: {2, 7}) == :ok
  end

  test "knows groups, constants and complex numbers" do
    for_all = [for: [:scan, :step, :backward, :scan]]
    assert warmup([b: {2, 7, 3, 4}, c: {6, 4}] ++ for_all) == :ok
    complex = [x: {2, 7, 6}, a: {6, 4, 2}] ++ for_all
    assert SelectiveScan.warmup(complex) == :ok
    assert SelectiveScan.warmup([b: {6, 4, 2}, c: {2, 7, 3, 4, 2}] ++ @all ++ complex) == :ok
  end

  test "is as strict as the calls are" do
    for {opts, words} <- [
          {[x: {2, 6}], "expected x to be {batch, seq, dim}, got: {2, 6}"},
          {[a: {6, 0}], "expected a to be {dim, state} or {dim, state, 2}, got: {6, 0}"},
          {[a: {5, 4}], "expected a to have shape {6, state}"},
          {[b: {2, 7, 5}], "expected b to have shape {2, 7, 4}"},
          {[d: :yes], "expected d to be true or a shape, got: :yes"},
          {[z: {2, 7, 5}], "expected z to have shape {2, 7, 6}"},
          # What is given reaches every kind of call.
          {[z: {2, 7, 5}, for: [:backward]], "expected z to have shape {2, 7, 6}"},
          {[initial_state: {2, 6, 4}, seq_idx: {2, 6}, for: [:backward]], "expected seq_idx to have shape {2, 7}"},
          {[d: {5}, for: [:step]], "expected d to have shape {6}"},
          {[z: {2, 7, 5}, for: [:step]], "expected z to have shape {2, 6}"},
          {[dt_limit: {1, 0}], "expected dt_limit to be {min, max} with min not above max"},
          {[dt_limit: {1, 0}, for: [:backward]], "expected dt_limit to be {min, max} with min not above max"},
          {[dt_limit: {1, 0}, for: [:step]], "expected dt_limit to be {min, max} with min not above max"},
          {[b: false], "expected b to be a shape, got: false"},
          {[initial_state: {9, 9, 9}, for: [:step]], "expected initial_state to be {2, 6, 4}, got: {9, 9, 9}"},
          {[for: [:scan | :step]], "expected for to be a list of"},
          {[type: :s32], "expected x to have type f32, bf16, f16 or f64"},
          {[type: :f8], "expected a type such as {:f, 32} or :f32"},
          {[for: :scan], "expected for to be a list of :scan, :step, :backward, got: :scan"},
          {[for: []], "expected for to be a list of"},
          {[method: :zho], "expected method to be one of :zoh"},
          {[dt: {2, 7, 6}], "expected options to be among"},
          {[dy: true], "expected options to be among :a, :algorithm, "},
          {[dfinal_state: true, for: [:backward]], "got: :dfinal_state"},
          {[seq_idx: true, for: [:step]], "expected seq_idx to be absent in a step"},
          {[backend: :gpu], "expected backend to be one of :auto"}
        ] do
      error = assert_raise ArgumentError, fn -> SelectiveScan.warmup(Keyword.merge(@sizes, opts)) end
      assert error.message =~ words
    end

    assert_raise ArgumentError, ~r/expected options to be a keyword list/, fn -> SelectiveScan.warmup(%{}) end
  end

  @tag :nx
  test "knows the Nx backend" do
    assert warmup(@all ++ [for: [:scan, :step, :backward], backend: :nx, algorithm: :sequential]) == :ok
  end

  test "shapes that no memory has room for are refused, and the next call works" do
    # Of the type that is the default, too: four bytes a number.
    for opts <- [[], [type: :f32]] do
      assert_raise ExPhil.Native.Error, ~r/out of memory/, fn ->
        SelectiveScan.warmup([x: {2 ** 60, 1, 1}, a: {1, 1}] ++ opts)
      end

      assert_raise ArgumentError, ~r/less than 2\^63 bytes/, fn ->
        SelectiveScan.warmup([x: {2 ** 61, 1, 1}, a: {1, 1}] ++ opts)
      end
    end

    assert warmup([]) == :ok
  end

  @tag :nx
  test "states that Nx has no memory for are refused, and wrong calls before them" do
    # Short to write down, and 2^40 states.
    [long, wide] = [{1, 2 ** 20, 1}, {1, 2 ** 20}]
    large = [x: long, a: wide, b: wide, c: wide, backend: :nx]

    for functions <- [[:scan], [:backward], [:step, :scan]] do
      no_memory = fn -> SelectiveScan.warmup([for: functions] ++ large) end
      assert_raise ExPhil.Native.Error, ~r/out of memory/, no_memory
      wrong = fn -> SelectiveScan.warmup([for: functions, z: {1, 2, 3}] ++ large) end
      assert_raise ArgumentError, ~r/expected z to have shape/, wrong
    end
  end

  @tag :no_cuda
  test "a backend that cannot run says why" do
    assert_raise ExPhil.Native.Error, ~r/the cuda backend cannot run/, fn -> warmup(backend: :cuda) end
  end

  # Not of an emulated device, which has nothing to be in time with.
  @tag cuda: :timed
  test "the first calls after it are as quick as the second" do
    # Sizes of its own: whatever other tests have loaded, these kernels are new.
    opts = [method: :highorder, dt_limit: {0.0, 1.0}, backend: :cuda]
    assert SelectiveScan.warmup([x: {3, 61, 72}, a: {72, 16}, for: [:scan, :step, :backward]] ++ opts) == :ok

    %{x: x, dt: dt, a: a, b: b, c: c, initial_state: state} = random(batch: 3, seq: 61, dim: 72, state: 16)
    [x_now, dt_now, b_now, c_now] = for tensor <- [x, dt, b, c], do: frame(tensor, 0)

    for call <- [
          fn -> SelectiveScan.scan_with_state(x, dt, a, b, c, opts) end,
          fn -> SelectiveScan.step(state, x_now, dt_now, a, b_now, c_now, opts) end,
          fn -> SelectiveScan.backward(x, x, dt, a, b, c, opts) end
        ] do
      [first, second] = for _ <- 1..2, do: elem(:timer.tc(call), 0)
      assert first < max(3 * second, 20_000)
    end
  end
end
