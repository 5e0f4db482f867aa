# A backend of Nx whose tensors lie in the memory of a CUDA device, in place of EXLA's: as much of one as a scan in place
# asks for. What it computes it computes on the host.
defmodule ExPhil.Native.DeviceMemory do
  # Compiles and loads device_memory.c; why not, where that does not go.
  def load do
    source = Path.join(__DIR__, "device_memory.c")
    library = Path.join(System.tmp_dir!(), "exphil_device_memory_#{System.pid()}")
    include = Path.join([:code.root_dir(), "usr", "include"])

    with compiler when compiler != nil <- System.find_executable("cc") || {:error, "there is no C compiler"},
         {_, 0} <-
           System.cmd(compiler, ["-shared", "-fPIC", "-w", "-I", include, "-o", library <> ".so", source, "-ldl"],
             stderr_to_stdout: true
           ),
         :ok <- :erlang.load_nif(String.to_charlist(library), 0) do
      :ok
    else
      {:error, reason} -> {:error, inspect(reason)}
      {words, _status} -> {:error, words}
    end
  end

  def allocate(_bytes), do: :erlang.nif_error(:not_loaded)
  def store(_address, _binary), do: :erlang.nif_error(:not_loaded)
  def fetch(_address, _bytes), do: :erlang.nif_error(:not_loaded)
end

defmodule ExPhil.Native.DeviceBackend do
  alias ExPhil.Native.DeviceMemory

  defstruct [:address, :bytes]

  def init(opts), do: opts

  def from_binary(tensor, binary, _opts) do
    bytes = byte_size(binary)
    address = bytes |> DeviceMemory.allocate() |> DeviceMemory.store(binary)
    %{tensor | data: %__MODULE__{address: address, bytes: bytes}}
  end

  def to_binary(%{data: data, type: {_, bits}}, limit) do
    DeviceMemory.fetch(data.address, min(data.bytes, limit * div(bits, 8)))
  end

  def to_pointer(%{data: data}, mode: :local) do
    %Nx.Pointer{kind: :local, address: data.address, data_size: data.bytes}
  end

  def backend_copy(tensor, backend, opts),
    do: backend.from_binary(tensor, to_binary(tensor, Nx.size(tensor)), opts)

  def backend_transfer(tensor, backend, opts), do: backend_copy(tensor, backend, opts)
  def inspect(tensor, opts), do: tensor |> on_host() |> Nx.BinaryBackend.inspect(opts)

  def negate(out, tensor), do: on_device(out, &Nx.BinaryBackend.negate(&1, on_host(tensor)))

  def broadcast(out, tensor, shape, axes),
    do: on_device(out, &Nx.BinaryBackend.broadcast(&1, on_host(tensor), shape, axes))

  defp on_host(tensor), do: backend_copy(tensor, Nx.BinaryBackend, [])
  defp on_device(out, compute), do: out |> compute.() |> Nx.backend_copy(__MODULE__)
end
