defmodule ExPhil.Native.SelectiveScan.Cost do
  @moduledoc false
  # Rough times of a call, to choose a scheduler and a backend by: a factor of two either way changes no result and
  # little time. The unit of work is one update of one real f32 state by zoh. With AVX-512 a core makes two to four of
  # them in a nanosecond, without vector instructions one takes a few nanoseconds.
  alias ExPhil.Native.SelectiveScan.Options
  alias ExPhil.Native.Tensor

  # These end within 100 µs everywhere.
  @short 32_768
  @work_per_us_and_core 2_500

  # Launch, synchronization and bookkeeping on an H200, and memory of the BEAM over PCIe, there and back.
  @cuda_launch_us 55
  @transferred_bytes_per_us 40_000

  # What an update takes beside one of zoh, as measured.
  @methods %{zoh: 1, bilinear: 1, rk4: 2, zoh_exact: 2, foh: 2, highorder: 2, poly: 2}
  @f64 2
  @complex 4

  # And in the backward pass beside the forward one, as measured: four to seven on two cores, up to sixteen on sixteen.
  @backward 8

  @type pass :: :forward | :backward

  @doc "The work of a pass over `inputs`, by their names; 0 where the shapes make no sense, which the native library will say."
  def work(pass, %{x: %Tensor{type: type, shape: x}, a: %Tensor{shape: a}} = inputs, options) do
    each = Map.get(@methods, options.method, 1)
    each = if pass == :backward, do: each * @backward, else: each
    each = if type == {:f, 64}, do: each * @f64, else: each
    each = if Options.both_ways?(options), do: each * 2, else: each

    case a do
      {_, state} -> each * updates(x, groups(inputs), size(state))
      {_, state, 2} -> each * @complex * updates(x, groups(inputs), size(state))
      _ -> 0
    end
  end

  # Sixteen channels of a group are computed at once, be they there or not, and what is done once for them costs as much as so
  # many updates.
  @at_once 16

  defp updates({batch, seq, dim}, groups, state) do
    blocks = groups * ceil_div(ceil_div(size(dim), groups), @at_once)
    size(batch) * blocks * @at_once * max(size(seq) * state, @at_once)
  end

  defp updates({batch, dim}, groups, state), do: updates({batch, 1, dim}, groups, state)
  defp updates(_, _groups, _state), do: 0

  defp ceil_div(size, by), do: div(size + by - 1, by)

  # Of b or c, whichever has more: {batch, seq, groups, state} where there are several, without seq in a step, and with a trailing
  # 2 where a has one.
  defp groups(%{x: %{shape: x}}) when not is_tuple(x), do: 1

  defp groups(%{x: %{shape: x}, a: %{shape: a}, b: b, c: c}) do
    lead = tuple_size(x) - 1
    grouped = lead + tuple_size(a)

    for %{shape: shape} when tuple_size(shape) == grouped <- [b, c],
        reduce: 1,
        do: (most -> max(most, size(elem(shape, lead))))
  end

  defp frames({batch, seq, dim}), do: size(batch) * size(seq) * size(dim)
  defp frames({batch, dim}), do: size(batch) * size(dim)
  defp frames(_), do: 0

  defp size(axis) when is_integer(axis), do: axis
  defp size(_), do: 0

  @doc "Whether the work may hold up a normal scheduler."
  def short?(work), do: work <= @short

  @doc "The time of the work on the CPU in microseconds."
  def cpu(work), do: div(work, @work_per_us_and_core * System.schedulers_online())

  @doc "The time of a pass on a GPU in microseconds, from and to the memory of the host: what is as long as x travels."
  def cuda(pass, %Tensor{type: type, shape: x}) do
    @cuda_launch_us + div(sequences(pass) * frames(x) * bytes(type), @transferred_bytes_per_us)
  end

  defp bytes({_class, bits}) when is_integer(bits), do: div(bits, 8)
  defp bytes(_), do: 0

  # x, dt and y; x, dt and dy and the gradients of the first two.
  defp sequences(:forward), do: 3
  defp sequences(:backward), do: 5
end
