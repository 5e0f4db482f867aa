if Code.ensure_loaded?(EXLA.CustomCall) do
  defimpl EXLA.CustomCall, for: [ExPhil.Native.Defn.Block.Forward, ExPhil.Native.Defn.Block.Backward] do
    @moduledoc false

    def call(block, _out, _args, %{platform: platform}) do
      with {target, attributes} <- ExPhil.Native.Defn.CustomCall.lower(block, platform) do
        {:ok, %EXLA.CustomCall.Spec{call_target_name: target, attributes: attributes}}
      end
    end
  end
end
