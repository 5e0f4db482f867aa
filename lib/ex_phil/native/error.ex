defmodule ExPhil.Native.Error do
  @moduledoc """
  Raised where a call was right and could not be carried out.

  `kind` is

    * `:unavailable` - what the call needs is not here: the backend that was asked for, or, where none was, the native
      library and Nx
    * `:failed` - it started and failed. After a lack of memory the next call works; where the driver has given up the
      process's context, as after a fault of the device, other backends do, and the message says so

  The message says why, in the words of the driver or the loader where there are any, and what can be done about it.
  A call that is itself wrong raises `ArgumentError`.
  """
  defexception [:kind, :message]

  @type t :: %__MODULE__{kind: :unavailable | :failed, message: String.t()}

  @doc false
  @spec raise!({:invalid_argument | :unavailable | :failed, String.t()}) :: no_return
  def raise!({:invalid_argument, message}), do: raise(ArgumentError, message)
  def raise!({kind, message}), do: raise(__MODULE__, kind: kind, message: message)

  @doc false
  # Of an argument that is wrong: what it is expected to be, or to have, and what came.
  @spec wrong!(atom | String.t(), String.t(), term) :: no_return
  def wrong!(name, words, got), do: raise(ArgumentError, "expected #{name} to #{words}, got: #{inspect(got)}")

  @doc false
  # Names, as such words have them.
  @spec list([atom]) :: String.t()
  def list(names), do: Enum.map_join(names, ", ", &inspect/1)
end
