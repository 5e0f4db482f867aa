defmodule ExPhil.Native.SelectiveScan.Callable do
  @moduledoc false
  # `def`, for functions that a `defn` may call where Nx is there: Nx asks that they say so.

  if Code.ensure_loaded?(Nx.Defn) do
    defmacro defcallable(call, do: block) do
      quote do
        require Nx.Defn
        Nx.Defn.deftransform(unquote(call), do: unquote(block))
      end
    end
  else
    defmacro defcallable(call, do: block) do
      quote do
        def unquote(call), do: unquote(block)
      end
    end
  end
end
