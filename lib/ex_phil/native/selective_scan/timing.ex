defmodule ExPhil.Native.SelectiveScan.Timing do
  @moduledoc false
  # Times of a call, one by one.

  @doc """
  Statistics of `trials` calls in a row after `warm_ups` that do not count, in microseconds. A call is over when its
  result is in the memory of the BEAM, so there is no device to wait for.
  """
  def measure(call, trials, warm_ups) do
    for _ <- 1..warm_ups//1, do: call.()
    times = for _ <- 1..trials//1, do: once(call)
    statistics(times)
  end

  defp once(call) do
    started = System.monotonic_time(:nanosecond)
    call.()
    (System.monotonic_time(:nanosecond) - started) / 1000
  end

  @doc false
  def statistics(times) do
    sorted = Enum.sort(times)
    count = length(sorted)
    mean = Enum.sum(sorted) / count
    variance = (sorted |> Enum.map(&((&1 - mean) * (&1 - mean))) |> Enum.sum()) / max(count - 1, 1)

    %{
      mean: mean,
      sd: :math.sqrt(variance),
      min: hd(sorted),
      p50: percentile(sorted, count, 50),
      p99: percentile(sorted, count, 99)
    }
  end

  # The least time that so many in a hundred do not exceed.
  defp percentile(sorted, count, percent), do: Enum.at(sorted, max(ceil(count * percent / 100) - 1, 0))
end
