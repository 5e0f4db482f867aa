defmodule ExPhil.Native.Nif do
  @moduledoc false
  # The native functions, as they answer where the library could not be loaded. The module itself loads all the same,
  # so that everybody can ask whether the library did, and why not.

  @on_load :load
  @load_error {__MODULE__, :load_error}
  @purge "restart the VM, or :code.purge(#{inspect(__MODULE__)}) and load it again"

  def load do
    path = Path.join(priv_dir(), "native/selective_scan_nif")
    # For machines without NVRTC and for first calls; it is there where `make ptx` was run.
    packed_kernels = Path.join(priv_dir(), "kernels.pack")

    case :erlang.load_nif(String.to_charlist(path), packed_kernels) do
      :ok ->
        :persistent_term.erase(@load_error)
        :ok

      # The module is being loaded again, and the library belongs to the code that was there.
      {:error, {:upgrade, _}} = refused ->
        # Refused, it goes on with the code and the library it has. Where that has been deleted (`recompile()`), there would be
        # no code at all.
        if :erlang.module_loaded(__MODULE__), do: refused, else: without("it belongs to deleted code", @purge)

      {:error, {_, words}} ->
        without(words, "run `mix compile --force` in exphil_native where cargo is on the path")
    end
  end

  defp without(why, remedy) do
    reason = "the native library is not loaded: #{why}; #{remedy}"
    :persistent_term.put(@load_error, {:error, {:unavailable, reason}})
    :ok
  end

  # Outside of an application (an archive, a module loaded by hand) there is no priv/ to be asked for.
  defp priv_dir do
    case :code.priv_dir(:exphil_native) do
      {:error, :bad_name} -> Path.expand("priv")
      path -> to_string(path)
    end
  end

  @doc "`:ok`, or the error that every native function answers with."
  def loaded, do: :persistent_term.get(@load_error, :ok)

  def check(_form, _tensors, _options), do: loaded()
  def forward_cpu(_form, _tensors, _options, _wanted), do: loaded()
  def forward_cpu_dirty(_form, _tensors, _options, _wanted), do: loaded()
  def forward_cuda(_ordinal, _form, _tensors, _options, _wanted), do: loaded()
  def backward_cpu(_dy, _tensors, _options), do: loaded()
  def backward_cpu_dirty(_dy, _tensors, _options), do: loaded()
  def backward_cuda(_ordinal, _dy, _tensors, _options), do: loaded()
  def forward_in_place(_ordinal, _form, _tensors, _options, _outputs, _held), do: loaded()
  def backward_in_place(_ordinal, _dy, _tensors, _options, _gradients, _held), do: loaded()
  def cuda_owner(_ranges), do: loaded()
  def cuda_devices, do: loaded()
  def cpu_instruction_set, do: loaded()
  def safetensors_layout(_file), do: loaded()
  def zeros(_size), do: loaded()
  def xla_register, do: loaded()
  def xla_scratch(_platform, _problem), do: loaded()
end
