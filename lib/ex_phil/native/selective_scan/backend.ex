defmodule ExPhil.Native.SelectiveScan.Backend do
  @moduledoc false
  # Where a call runs, and why: the option `:backend`, else the environment variable EXPHIL_SCAN_BACKEND, else :auto.
  alias ExPhil.Native.{Error, Nif}
  alias ExPhil.Native.SelectiveScan.{Cost, Devices, Fallback}
  alias ExPhil.Native.Tensor

  @variable "EXPHIL_SCAN_BACKEND"

  @type preference :: :auto | :cpu | :nx | :cuda | {:cuda, non_neg_integer}
  @type t :: ExPhil.Native.SelectiveScan.backend()

  @doc "A backend that can be asked for, as the option `:backend` has it."
  @spec preference!(term) :: preference | nil
  def preference!(value) when value in [nil, :auto, :cuda, :cpu, :nx], do: value
  def preference!({:cuda, ordinal}) when is_integer(ordinal) and ordinal >= 0, do: {:cuda, ordinal}

  def preference!(value) do
    Error.wrong!(:backend, "be one of :auto, :cuda, {:cuda, ordinal}, :cpu, :nx", value)
  end

  @doc "The backend that a word stands for, in the environment variable and on command lines; `:error` where it is none."
  @spec parse(String.t()) :: {:ok, preference} | :error
  def parse(word) when word in ~w(auto cuda cpu nx), do: {:ok, String.to_existing_atom(word)}

  def parse("cuda:" <> ordinal) do
    case Integer.parse(ordinal) do
      {n, ""} when n >= 0 -> {:ok, {:cuda, n}}
      _ -> :error
    end
  end

  def parse(_word), do: :error

  # What the environment asks for; nil where it does not.
  defp from_environment, do: from_environment(System.get_env(@variable, ""))
  defp from_environment(""), do: nil

  defp from_environment(text) do
    case parse(text) do
      {:ok, backend} ->
        backend

      :error ->
        Error.wrong!("the environment variable #{@variable}", "be one of auto, cpu, cuda, cuda:1, nx", text)
    end
  end

  @doc """
  The backend of a `pass`, `:forward` or `:backward`, over `inputs` by their names, and whether another may take its place if it
  fails. Raises where a backend was asked for that cannot run. Before it does, and before it announces another, it calls `check`,
  which raises where the call is wrong itself.
  """
  @spec choose(Cost.pass(), struct, %{atom => Tensor.t()}, (() -> any)) :: {t, :forced | :chosen}
  def choose(pass, options, inputs, check) do
    {backend, how, instead} = decide(pass, options, inputs)

    with {of, reason} <- instead do
      check.()
      Fallback.announce(of, backend, reason)
    end

    {backend, how}
  rescue
    error in Error ->
      check.()
      reraise error, __STACKTRACE__
  end

  # The third says which backend it is instead of, and why, where that is no ordinary choice.
  defp decide(pass, options, inputs) do
    case asked_for(options) do
      :cpu -> {cpu!(), :forced, nil}
      :auto -> automatic(pass, options, inputs)
      :cuda -> {{:cuda, first_device!()}, :forced, nil}
      {:cuda, ordinal} -> {{:cuda, device!(ordinal)}, :forced, nil}
      :nx -> {nx!(), :forced, nil}
    end
  end

  @doc """
  Whether a call in `defn` becomes the native operation, whose own backend is chosen where it runs, or a scan in Nx.
  """
  @spec in_defn(struct) :: :native | :nx
  def in_defn(options) do
    case {asked_for(options), callable()} do
      {:nx, _} -> :nx
      {:auto, {:error, {_kind, reason}}} -> in_place_of_native(reason)
      {_native, {:error, reason}} -> Error.raise!(reason)
      {_native, :ok} -> :native
    end
  end

  # From an expression. Not known to the compiler where Nx is not.
  defp callable do
    with :ok <- Nif.loaded() do
      if Code.ensure_loaded?(ExPhil.Native.Defn.Block) do
        :ok
      else
        remedy = "add Nx 0.11 or newer, use backend: :nx, or call the scan outside of defn"
        {:error, {:unavailable, "this Nx cannot call the native library from a defn; #{remedy}"}}
      end
    end
  end

  defp in_place_of_native(reason) do
    Fallback.announce(:cpu, :nx, reason)
    :nx
  end

  @doc "What a call asks for, by option or by the environment."
  @spec asked_for(struct) :: preference
  def asked_for(options), do: options.backend || from_environment() || :auto

  @doc "The same choice, with its reason in words. Nothing runs, so that nothing is announced."
  @spec explain(Cost.pass(), struct, %{atom => Tensor.t()}) :: {t, String.t()}
  def explain(pass, %{backend: option} = options, inputs) do
    case decide(pass, options, inputs) do
      {backend, :forced, _} when option != nil -> {backend, "asked for by backend: #{inspect(option)}"}
      {backend, :forced, _} -> {backend, "asked for by #{@variable}=#{System.get_env(@variable)}"}
      {backend, :chosen, _} -> {backend, why(pass, options, inputs)}
    end
  end

  defp automatic(pass, options, inputs) do
    case Nif.loaded() do
      :ok -> cpu_or_cuda(pass, options, inputs)
      {:error, {_kind, words} = reason} -> if nx?(), do: {:nx, :chosen, {:cpu, words}}, else: Error.raise!(reason)
    end
  end

  defp cpu! do
    with {:error, reason} <- Nif.loaded(), do: Error.raise!(reason)
    :cpu
  end

  # Compiled with Nx, and it is still there.
  defp nx?, do: Code.ensure_loaded?(ExPhil.Native.Defn.Call) and Code.ensure_loaded?(Nx)

  @doc "Whether Nx computes in something else than Elixir. Its own backend takes hours for sizes that others have in a moment."
  def compiled_nx?, do: nx?() and elem(apply(Nx, :default_backend, []), 0) != Nx.BinaryBackend

  defp nx! do
    if not nx?() do
      unavailable!(
        "the nx backend cannot run: Nx is not among the dependencies; use :auto, :cpu or :cuda, or add Nx"
      )
    end

    :nx
  end

  defp cpu_or_cuda(pass, options, inputs) do
    case Devices.all() do
      {:ok, [device | _]} ->
        cpu = Cost.cpu(Cost.work(pass, inputs, options))
        {if(Cost.cuda(pass, inputs.x) < cpu, do: {:cuda, device.ordinal}, else: :cpu), :chosen, nil}

      # No driver is the ordinary state of most machines, one that does not work is not.
      {:error, {:failed, reason}} ->
        {:cpu, :chosen, {:cuda, reason}}

      _none ->
        {:cpu, :chosen, nil}
    end
  end

  defp why(pass, options, inputs) do
    # Without the native library, this says why it is not there.
    case Devices.all() do
      {:ok, [device | _]} ->
        cpu = Cost.cpu(Cost.work(pass, inputs, options))
        "about #{cpu} µs on the CPU, #{Cost.cuda(pass, inputs.x)} µs on #{device.name} with the transfers"

      {:ok, []} ->
        "there is no CUDA device"

      {:error, {_kind, reason}} ->
        reason
    end
  end

  defp first_device! do
    case devices!() do
      [device | _] -> device.ordinal
      [] -> unavailable!("the cuda backend cannot run: there is no CUDA device; use backend: :auto or :cpu")
    end
  end

  defp device!(ordinal) do
    ordinals = Enum.map(devices!(), & &1.ordinal)

    if ordinal in ordinals do
      ordinal
    else
      there = "the CUDA devices of this machine are #{inspect(ordinals)}"
      unavailable!("the cuda backend cannot run: there is no device #{ordinal}; #{there}")
    end
  end

  defp devices! do
    case Devices.all() do
      {:ok, devices} -> devices
      {:error, reason} -> Error.raise!(reason)
    end
  end

  defp unavailable!(message), do: Error.raise!({:unavailable, message})
end
