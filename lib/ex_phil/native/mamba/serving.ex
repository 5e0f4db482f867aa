# Before Nx 0.11 a compiled expression grows beyond all memory where it is sent to another process, as a serving does.
if Code.ensure_loaded?(Axon) and Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 3) do
  defmodule ExPhil.Native.Mamba.Serving do
    @moduledoc """
    A Mamba model that plays many games at once: an `Nx.Serving` that takes a frame of any number of games, from any
    number of processes, on any node of a cluster, and goes one frame on with all of them in one batch. Compiled where Axon is, and Nx 0.11 or newer.

    A request is `{frame, state}` and its answer `{output, state}`, with the state to send along with the next frame:

        opts = [embed_size: 287, hidden_size: 256, head: &Axon.dense(&1, 64, name: "head")]
        children = [
          {Nx.Serving, name: Games, serving: ExPhil.Native.Mamba.Serving.new(parameters, opts)}
        ]

        # in the process of a game
        state = ExPhil.Native.Mamba.initial_state(opts)
        {output, state} = Nx.Serving.batched_run(Games, {frame, state})

    ## Where the state of a game is

    With the game, not in the serving. `Nx.Serving.batched_run/3` sends a request to any node that runs the serving, and
    to another where that one is gone; a state that lay on a node would have to be found again, would be lost with the
    node, and would have to be thrown away when its game ends. So the serving keeps nothing, every request can be
    answered anywhere, asked again with the same result, and a game may be stopped, copied and taken up elsewhere. On
    one node nothing is copied for it, since large binaries are shared between processes. Over the network a
    state of the default model (two blocks of 512 channels) is 80 kB each way, 5 MB in a second at 60 frames.

    ## Tensors

    Of a request and of its answer, where `games` is mostly 1 and at most the batch size:

    | tensor | shape | type |
    |---|---|---|
    | `frame` | `{games, embed_size}` | `f32` |
    | `state`, a map | that of `ExPhil.Native.Mamba.initial_state/2` | `f32` |
    | `output` | `{games, hidden_size}`, or what the head makes of it | that of the model |

    Where the parameters are in `f64`, the state is rounded to `f32` from frame to frame.

    A wrong request raises `ArgumentError` in the process that made it, before it meets the requests of others.

    ## In a cluster

    Start the same child on every node; `Nx.Serving.batched_run({:distributed, Games}, request)` takes one by chance, and
    `Games` alone the one of its own node where there is one. Answers cross in `Nx.BinaryBackend`; where frames lie
    elsewhere, give `&Nx.backend_copy(&1, Nx.BinaryBackend)` as the third argument of `batched_run`.
    """
    alias ExPhil.Native.{Error, Mamba, Tensor}
    alias ExPhil.Native.Mamba.Options

    @doc """
    The serving of a model with these `parameters`: those that `Axon.Loop.run/4` gives for `ExPhil.Native.Mamba.build/1`,
    or a map of them, as `ExPhil.Native.Mamba.load_safetensors/1` gives it of a file that has all of the model, and its head.
    Raises `ArgumentError` where any is no tensor with numbers.

    ## Options

    Those of `ExPhil.Native.Mamba.build_step/1`, where a `:head` whose outputs do not keep the axis of games, the first,
    raises `ArgumentError` when the serving starts, and

      * `:batch_size` - games in a batch at most. Default `32`. The model is compiled when the serving starts, for every
        power of two up to it, and a batch is filled up to the next: no frame ever waits for a compiler, and few games
        are not computed as many.

      * `:batch_timeout` - milliseconds that the first request waits for others. Default `1`; a frame has 16.

      * `:defn_options` - for the compiler, such as `[compiler: EXLA]`. Default `[]`.

    The process takes every option of `Nx.Serving.start_link/1` besides.

    ## Examples

        iex> opts = [embed_size: 8, hidden_size: 16, state_size: 4, num_layers: 1]
        iex> {init, _predict} = Axon.build(ExPhil.Native.Mamba.build(opts))
        iex> parameters = init.(Nx.template({1, 60, 8}, :f32), Axon.ModelState.empty())
        iex> serving = ExPhil.Native.Mamba.Serving.new(parameters, opts)
        iex> state = ExPhil.Native.Mamba.initial_state(opts)
        iex> {hidden, _state} = Nx.Serving.run(serving, {Nx.broadcast(0.5, {1, 8}), state})
        iex> Nx.shape(hidden)
        {1, 16}
    """
    @spec new(%Axon.ModelState{} | map, keyword) :: Nx.Serving.t()
    def new(parameters, opts) do
      {own, opts} = Options.split!(opts, [:batch_size, :batch_timeout, :defn_options], [:head])
      own = Keyword.merge([batch_size: 32, batch_timeout: 1, defn_options: []], own)
      for {name, value} <- own, do: own!(name, value)
      step = Mamba.build_step(opts)
      request = request(opts)
      parameters = parameters!(parameters)

      fn defn_options -> batched(step, parameters, request, own[:batch_size], defn_options) end
      |> Nx.Serving.new(own[:defn_options])
      |> Nx.Serving.batch_size(own[:batch_size])
      |> Nx.Serving.process_options(batch_timeout: own[:batch_timeout])
      |> Nx.Serving.client_preprocessing(&{batch!(&1, request, own[:batch_size]), :none})
      |> Nx.Serving.distributed_postprocessing(&Nx.backend_copy(&1, Nx.BinaryBackend))
    end

    # Nx looks at none of them as closely: what it takes may end the serving at the first request.
    defp own!(:batch_size, size) when is_integer(size) and size > 0, do: :ok
    defp own!(:batch_size, other), do: Error.wrong!("batch_size", "be a positive integer", other)
    defp own!(:batch_timeout, timeout) when is_integer(timeout) and timeout >= 0, do: :ok
    defp own!(:batch_timeout, other), do: Error.wrong!("batch_timeout", "be milliseconds, 0 or more", other)

    defp own!(:defn_options, options) do
      if not Keyword.keyword?(options), do: Error.wrong!("defn_options", "be a keyword list", options)
    end

    defp parameters!(%Axon.ModelState{data: %{} = layers} = state) do
      parameters!(layers)
      state
    end

    defp parameters!(%{} = layers) when not is_struct(layers) do
      for {layer, parameters} <- layers,
          not is_map(parameters),
          do: Error.wrong!("parameters", "be maps of tensors by the names of layers", {layer, parameters})

      for {layer, parameters} <- layers, do: parameter!("of layer #{inspect(layer)}", parameters)
      Axon.ModelState.new(layers)
    end

    defp parameters!(other), do: Error.wrong!("parameters", "be an Axon.ModelState or a map", other)

    # What Nx would refuse when the serving starts, or when it is asked, is refused here.
    defp parameter!(where, %Nx.Tensor{} = tensor), do: Tensor.numbers!(tensor, "parameter #{where}")

    defp parameter!(where, %{} = of_layer) when not is_struct(of_layer) do
      for {name, parameter} <- of_layer, do: parameter!("#{inspect(name)} #{where}", parameter)
    end

    # Such as a quantized tensor of Axon.
    defp parameter!(where, other) do
      if Nx.Container.impl_for(other) in [nil, Nx.Container.Any],
        do: Error.wrong!("parameter #{where}", "be an Nx.Tensor", other)
    end

    # The tensors of a request of one game, by their names.
    defp request(opts) do
      {_head, of_model} = Options.split!(opts, [:head])
      %{embed_size: size} = Options.read!(of_model)
      for {name, tensor} <- Mamba.initial_state(opts), into: %{"frame" => {1, size}}, do: {name, Nx.shape(tensor)}
    end

    defp batched(step, parameters, request, limit, defn_options) do
      {_init, predict} = Axon.build(step)
      # What Nx.Serving adds is not the compiler's.
      options = Keyword.delete(defn_options, :batch_keys)

      compiled =
        for size <- sizes(limit), into: %{} do
          inputs = Map.new(request, fn {name, shape} -> {name, Nx.template(put_elem(shape, 0, size), :f32)} end)
          answered = &answer(predict.(&1, &2), size)
          {size, Nx.Defn.compile(answered, [Nx.to_template(parameters), inputs], options)}
        end

      fn %Nx.Batch{size: games} = batch ->
        size = compiled |> Map.keys() |> Enum.filter(&(&1 >= games)) |> Enum.min()
        compiled[size].(parameters, Nx.Batch.pad(batch, size - games))
      end
    end

    # What the model gives for so many games, as Nx shares it out among them and they send it back.
    defp answer({output, state}, games) do
      for shape <- [output] |> Nx.Defn.Composite.flatten_list() |> Enum.map(&Nx.shape/1),
          shape == {} or elem(shape, 0) != games,
          do: Error.wrong!("head", "keep the axis of games, the first, #{games} long in every output", shape)

      {output, Map.new(state, fn {name, tensor} -> {name, Nx.as_type(tensor, :f32)} end)}
    end

    # The powers of two below the limit, and the limit.
    defp sizes(limit), do: 1 |> Stream.iterate(&(2 * &1)) |> Enum.take_while(&(&1 < limit)) |> Enum.concat([limit])

    # Requests that do not fit together would bring the process of the serving down, and every game with it.
    defp batch!({%Nx.Tensor{} = frame, state}, request, limit) when is_map(state) and not is_struct(state) do
      [names, wanted] = for map <- [state, Map.delete(request, "frame")], do: map |> Map.keys() |> Enum.sort()
      if names != wanted, do: Error.wrong!("the state", "have #{inspect(wanted)}", names)
      tensors = Map.put(state, "frame", frame)
      for {name, tensor} <- tensors, do: numbers!(name, tensor)
      games = games!(frame, limit)
      for {name, shape} <- request, do: fits!(name, tensors[name], put_elem(shape, 0, games))
      # The batch wants the axes of all requests to have the same names.
      Nx.Batch.concatenate([Map.new(tensors, fn {name, tensor} -> {name, Tensor.nameless(tensor)} end)])
    end

    defp batch!(other, _request, _limit),
      do: Error.wrong!("a request", "be {frame, state}, a tensor and a map of tensors", other)

    defp games!(frame, limit) do
      case Nx.shape(frame) do
        {games, _features} when games <= limit -> games
        shape -> Error.wrong!("frame", "have shape {games, embed_size} with up to #{limit} games", shape)
      end
    end

    defp numbers!(name, %Nx.Tensor{} = tensor) do
      %{vectorized_axes: axes} = Tensor.numbers!(tensor, name)
      # The shape of such a one is without them.
      if axes != [], do: Error.wrong!(name, "have no vectorized axes", axes)
    end

    defp numbers!(name, other), do: Error.wrong!(name, "be an Nx.Tensor", other)

    defp fits!(_name, %{shape: shape, type: {:f, 32}}, shape), do: :ok

    defp fits!(name, %{type: {:f, 32}} = tensor, shape),
      do: Error.wrong!(name, "have shape #{inspect(shape)}", tensor.shape)

    defp fits!(name, %{type: type}, _shape), do: Error.wrong!(name, "have type {:f, 32}", type)
  end
end
