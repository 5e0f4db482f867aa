defmodule ExPhil.Native.SelectiveScan.Devices do
  @moduledoc false
  # The CUDA devices of this machine. Looking for them loads the driver, so it is done once; a BEAM keeps what it
  # found.
  alias ExPhil.Native.Nif

  @key {__MODULE__, :all}

  @doc "`{:ok, devices}`, or the `{:error, {kind, message}}` that looking for them ended in."
  def all do
    with nil <- :persistent_term.get(@key, nil), :ok <- Nif.loaded() do
      found = Nif.cuda_devices()
      :persistent_term.put(@key, found)
      found
    end
  end
end
