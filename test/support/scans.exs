defmodule ExPhil.Native.Scans do
  # Calls to try things on, and distances between what comes back.
  alias ExPhil.Native.{Nif, Tensor}

  @doc "Tensors and options of a scan over random numbers, the same for the same seed."
  def random(sizes, seed \\ 0) do
    :rand.seed(:exsss, {1, 2, seed})
    sizes = Map.merge(%{batch: 2, seq: 7, dim: 6, state: 4, type: {:f, 32}}, Map.new(sizes))
    %{batch: batch, seq: seq, dim: dim, state: state, type: type} = sizes
    own = if type == {:f, 64}, do: type, else: {:f, 32}

    %{
      x: normal({batch, seq, dim}, type),
      dt: uniform({batch, seq, dim}, type, 0.001, 0.5),
      a: uniform({dim, state}, own, -1.6, -0.1),
      b: normal({batch, seq, state}, type),
      c: normal({batch, seq, state}, type),
      d: normal({dim}, own),
      z: normal({batch, seq, dim}, type),
      dt_bias: normal({dim}, own),
      initial_state: normal({batch, dim, state}, own)
    }
  end

  def normal(shape, type), do: fill(shape, type, fn -> :rand.normal() end)
  def uniform(shape, type, low, high), do: fill(shape, type, fn -> low + (high - low) * :rand.uniform() end)

  defp fill(shape, type, number) do
    data = for _ <- 1..Tuple.product(shape), into: <<>>, do: Tensor.Numbers.encode(number.(), type)
    Tensor.from_binary(data, type, shape)
  end

  @doc "Every method, with each kind of coefficients that it has."
  def methods do
    exact = for method <- [:zoh, :zoh_exact, :foh, :bilinear, :poly, :highorder, :rk4], do: {method, :exact}
    exact ++ for method <- [:foh, :poly, :highorder], do: {method, :taylor}
  end

  @doc "Complex rates of decay."
  def complex_rates({dim, state}, type) do
    pair = fn -> for part <- [-0.1 - :rand.uniform(), 3 * :rand.normal()], do: part end
    Tensor.from_list(for(_ <- 1..dim, do: for(_ <- 1..state, do: pair.())), type)
  end

  @doc "A tensor of what `fun` makes of the numbers of two."
  def zip(%Tensor{} = left, %Tensor{} = right, fun) do
    numbers = Enum.zip_with(numbers(left), numbers(right), fun)
    %{left | data: for(number <- numbers, into: <<>>, do: Tensor.Numbers.encode(number, left.type))}
  end

  @doc "The sum of the products of their numbers."
  def dot(%Tensor{} = left, %Tensor{} = right) do
    Enum.zip_with(numbers(left), numbers(right), &(&1 * &2)) |> Enum.sum()
  end

  defp numbers(tensor), do: Tensor.Numbers.decode(tensor.data, tensor.type)

  @doc "`length` frames of {1, seq, ...}, from one on."
  def cut(%Tensor{shape: shape} = tensor, from, length) do
    size = div(byte_size(tensor.data), elem(shape, 1))
    %{tensor | shape: put_elem(shape, 1, length), data: binary_part(tensor.data, from * size, length * size)}
  end

  @doc "The frames of {batch, seq, ...} in their order."
  def frames(%Tensor{shape: shape} = tensor), do: for(index <- 0..(elem(shape, 1) - 1), do: frame(tensor, index))

  @doc "{batch, seq, ...} with its frames the other way round."
  def turn(%Tensor{shape: shape} = tensor) do
    {batch, seq} = {elem(shape, 0), elem(shape, 1)}
    size = div(byte_size(tensor.data), batch * seq)

    data =
      for row <- 0..(batch - 1),
          index <- (seq - 1)..0//-1,
          into: <<>>,
          do: binary_part(tensor.data, (row * seq + index) * size, size)

    %{tensor | data: data}
  end

  @doc "The frame at `index` of {batch, seq, ...}."
  def frame(%Tensor{shape: shape} = tensor, index) do
    [batch, seq | rest] = Tuple.to_list(shape)
    size = div(byte_size(tensor.data), batch * seq)
    data = for row <- 0..(batch - 1), into: <<>>, do: binary_part(tensor.data, (row * seq + index) * size, size)
    Tensor.from_binary(data, tensor.type, List.to_tuple([batch | rest]))
  end

  @doc "The numbers of a tensor in another type."
  def as_type(%Tensor{} = tensor, type) do
    data = for number <- numbers(tensor), into: <<>>, do: Tensor.Numbers.encode(number, type)
    Tensor.from_binary(data, type, tensor.shape)
  end

  @doc """
  The calls of the native library, `{name, arguments}`, that a function makes. What is traced, the whole BEAM shares: for
  tests that run alone.
  """
  def native_calls(fun) do
    task = Task.async(fn -> receive(do: (:go -> fun.())) end)
    :erlang.trace_pattern({Nif, :_, :_}, true)
    :erlang.trace(task.pid, true, [:call])
    send(task.pid, :go)
    Task.await(task, :infinity)
    :erlang.trace_pattern({Nif, :_, :_}, false)
    delivered = :erlang.trace_delivered(task.pid)
    receive(do: ({:trace_delivered, _pid, ^delivered} -> traced(task.pid)))
  end

  defp traced(pid) do
    receive do
      {:trace, ^pid, :call, {Nif, name, arguments}} -> [{name, arguments} | traced(pid)]
    after
      0 -> []
    end
  end

  @doc "How far `got` is from `wanted`, relative to the norm of `wanted`."
  def distance(%Tensor{} = got, %Tensor{} = wanted) do
    if got.shape != wanted.shape, do: raise("shapes #{inspect(got.shape)} and #{inspect(wanted.shape)}")
    pairs = Enum.zip(numbers(got), numbers(wanted))
    error = pairs |> Enum.map(fn {g, w} -> (g - w) * (g - w) end) |> Enum.sum()
    norm = pairs |> Enum.map(fn {_, w} -> w * w end) |> Enum.sum()
    :math.sqrt(error / max(norm, 1.0e-300))
  end
end
