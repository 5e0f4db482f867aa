defmodule ExPhil.Native.SelectiveScan.Fallback do
  @moduledoc false
  # A call that was to run on one backend and runs on another is no secret: a telemetry event every time, where
  # :telemetry is loaded, and one warning in the life of the BEAM.
  require Logger

  @event [:exphil_native, :selective_scan, :fallback]
  @warned {__MODULE__, :warned}

  def announce(from, to, reason) do
    if Code.ensure_loaded?(:telemetry) do
      metadata = %{from: from, to: to, reason: reason}
      # Not known to the compiler where the package is not among the dependencies.
      apply(:telemetry, :execute, [@event, %{system_time: System.system_time()}, metadata])
    end

    if not warned?(), do: warn_once("selective scan: #{to} in place of #{from}: #{reason}")
  end

  defp warned?, do: :persistent_term.get(@warned, false)

  # Many processes may find out at once.
  defp warn_once(text) do
    :global.trans(
      {@warned, self()},
      fn ->
        if not warned?() do
          :persistent_term.put(@warned, true)
          Logger.warning(text)
        end
      end,
      [node()]
    )
  end
end
