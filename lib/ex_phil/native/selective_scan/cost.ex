defmodule ExPhil.Native.SelectiveScan.Cost do
  @moduledoc false
  # Rough times of a call, to choose a scheduler and a backend by. A factor of two either way changes no result and
  # little time, so the type, the method and the options are left out.

  # Updates of one state, of which a core makes four in a nanosecond with AVX-512 and one every few nanoseconds
  # without vector instructions: fewer than these end within 100 µs everywhere.
  @short 32_768
  @updates_per_us_and_core 4_000

  # Launch, synchronization and bookkeeping on an H200, and pageable memory over PCIe (12 MiB there and back: about
  # a millisecond).
  @cuda_launch_us 40
  @transferred_bytes_per_us 12_000

  @doc "How often a state is updated; 0 where the shapes make no sense, which the native library will say."
  def updates(%{shape: x}, %{shape: a}) do
    case {x, a} do
      {{batch, seq, dim}, {_, state}} -> product(batch, seq, dim, state)
      {{batch, seq, dim}, {_, state, 2}} -> product(batch, seq, dim, state)
      {{batch, dim}, {_, state}} -> product(batch, 1, dim, state)
      {{batch, dim}, {_, state, 2}} -> product(batch, 1, dim, state)
      _ -> 0
    end
  end

  defp product(batch, seq, dim, state)
       when is_integer(batch) and is_integer(seq) and is_integer(dim) and is_integer(state),
       do: batch * seq * dim * state

  defp product(_, _, _, _), do: 0

  @doc "Whether a call may hold up a normal scheduler."
  def short?(updates), do: updates <= @short

  @doc "The time on the CPU in microseconds."
  def cpu(updates), do: div(updates, @updates_per_us_and_core * System.schedulers_online())

  @doc "The time on a GPU in microseconds, from and to the memory of the host: x, dt and y have to travel."
  def cuda(%{data: x}) when is_binary(x), do: @cuda_launch_us + div(3 * byte_size(x), @transferred_bytes_per_us)
  def cuda(_), do: @cuda_launch_us
end
