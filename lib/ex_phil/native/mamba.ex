if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Mamba do
    @moduledoc """
    Mamba models in Axon over the native scan. Compiled where Axon is.

    There are two kinds of block:

      * `:exphil`, the block of ExPhil's and Edifice's `Mamba`, with the names of its layers and parameters, so that a
        checkpoint of one loads in the other;

      * `:mamba_ssm`, the block of Gu and Dao's own implementation, whose weights `load_safetensors/1` reads.

    Both are trained with `Axon.Loop` as any other model; the gradient of the scan is the native one. What was trained
    on sequences (`build/1`) runs frame by frame with the same parameters (`build_step/1`), and for many games at once
    in an `Nx.Serving` (`ExPhil.Native.Mamba.Serving`).

    ## In ExPhil's and Edifice's own models

    `ExPhil.Networks.MambaNIF` calls `ExPhil.Native.SelectiveScan.scan/5`, which is this library's where ExPhil's own
    module of that name is taken out. In `ExPhil.Networks.Mamba` and `Edifice.SSM.Mamba` the layer of the scan can be
    exchanged, and the model trains and runs on as before, with the same parameters:

        Axon.map_nodes(model, fn
          %Axon.Node{op_name: :parallel_scan_ssm} = layer -> %{layer | op: &ExPhil.Native.Mamba.exphil_scan/5}
          layer -> layer
        end)

    Tried on their sources of July 2026, with two layers of 64 channels and 16 states in f32, over 20 and 60 frames: with
    this scan in place of theirs outputs up to 4 differ by 8e-7 at most, and gradients of parameters by 1e-6 of their
    norm; their checkpoint in `build/1` gives their outputs to 1.1e-6, and in `build_step/1` those of
    `Edifice.SSM.Mamba.step/3` to 1.9e-6. MambaNIF gives what its kernel is written to compute, bit by bit; that
    multiplies each channel's input with its own step size, where the others take the mean.
    """
    alias ExPhil.Native.{Error, Layers, SelectiveScan, Tensor}
    alias ExPhil.Native.Mamba.{Block, Options, Weights}
    alias ExPhil.Native.SelectiveScan.Check

    # Where ExPhil's and Edifice's models keep the step size.
    @least_step 0.001
    @greatest_step 0.1

    @doc """
    A model from `{batch, window_size, embed_size}`, the input `"state_sequence"`, to the last hidden state `{batch,
    hidden_size}`.

    ## Options

      * `:embed_size` - features of a frame. Required. Also `:embed_dim`, as in Edifice; where both are given, they are
        equal.

      * `:hidden_size` - width of the residual stream. Default `256`.

      * `:state_size` - states of a channel. Default `16`.

      * `:expand_factor` - channels of the scan in multiples of `:hidden_size`. Default `2`.

      * `:conv_size` - frames that the convolution reaches over. Default `4`.

      * `:num_layers` - blocks. Default `2`.

      * `:dropout` - rate between blocks. Default `0.0`.

      * `:window_size` - frames of an input, `nil` for any number. Default `60`. Also `:window`, and `:seq_len` as in
        ExPhil and Edifice, which counts before the others.

      * `:block` - `:exphil` or `:mamba_ssm`. Default `:exphil`.

      * `:scan` - options of the scan that are no tensors, such as `[method: :foh, backend: :cpu]`; with `block: :mamba_ssm`
        also `:skip` and `:dt_bias` of `ExPhil.Native.Layers.selective_scan/2`. Default `[]`.

    ## Examples

        iex> model = ExPhil.Native.Mamba.build(embed_size: 32, hidden_size: 16, state_size: 4)
        iex> Axon.get_output_shape(model, Nx.template({2, 60, 32}, :f32)) |> Nx.shape()
        {2, 16}

    ## Error cases

        iex> ExPhil.Native.Mamba.build(hidden_size: 16)
        ** (ArgumentError) expected embed_size to be a positive integer, got: nil

        iex> ExPhil.Native.Mamba.build(embed_size: 8, block: :mamba2)
        ** (ArgumentError) expected block to be one of :exphil, :mamba_ssm, got: :mamba2
    """
    @spec build(keyword) :: Axon.t()
    def build(opts \\ []) do
      opts = Options.read!(opts)
      input = Axon.input("state_sequence", shape: {nil, opts.window_size, opts.embed_size})
      {hidden, _none} = input |> project(opts) |> blocks(nil, opts)
      hidden |> Axon.nx(&last_frame/1, name: "last_timestep") |> final_norm(opts)
    end

    @doc """
    The same model one frame at a time: `{output, state}`, an `Axon.container/2`. Its inputs are `"frame"` `{batch,
    embed_size}` and every tensor of the state (`initial_state/2`) by its name; its layers and parameters are those of
    `build/1`. After n frames the output is what `build/1` gives for those n.

    The state is, for every block, the last `conv_size` frames that its convolution has seen, `{batch, conv_size,
    channels}`, and the state of its scan, `{batch, channels, state_size}`, where there are `expand_factor *
    hidden_size` channels.

    Options are those of `build/1`, of which `:window_size` and `:dropout` have no meaning here, and

      * `:head` - a function from the node of the hidden state to that of the output, whatever follows `build/1` in the
        model as trained. Default: the hidden state itself. In a serving every output has to keep the axis of games,
        the first.

    Under a policy of mixed precision the scan runs in f32 as ever, but Axon hands its state over in the policy's types, rounded
    from frame to frame.

    A step is causal: what `ExPhil.Native.SelectiveScan.step/7` refuses among the options of the scan, it refuses here.

    ## Examples

        iex> opts = [embed_size: 8, hidden_size: 16, state_size: 4, num_layers: 1]
        iex> step = ExPhil.Native.Mamba.build_step([head: &Axon.dense(&1, 3, name: "head")] ++ opts)
        iex> inputs = opts |> ExPhil.Native.Mamba.initial_state(2) |> Map.put("frame", Nx.broadcast(0.5, {2, 8}))
        iex> {init, predict} = Axon.build(step)
        iex> {output, state} = predict.(init.(inputs, Axon.ModelState.empty()), inputs)
        iex> Nx.shape(output)
        {2, 3}
        iex> Map.new(state, fn {name, tensor} -> {name, Nx.shape(tensor)} end)
        %{"mamba_block_1_conv_state" => {2, 4, 32}, "mamba_block_1_ssm_state" => {2, 32, 4}}
    """
    @spec build_step(keyword) :: Axon.t()
    def build_step(opts \\ []) do
      {own, opts} = Options.split!(opts, [:head])
      head = own[:head] || (& &1)

      if not is_function(head, 1),
        do: raise(ArgumentError, "expected head to be a function of one node, got: #{inspect(head)}")

      opts = Options.read!(opts)
      opts |> Options.of_scan() |> Check.causal!(nil)
      past = Map.new(kept(opts), fn {name, shape} -> {name, Axon.input(name, shape: shape)} end)
      frame = Axon.input("frame", shape: {nil, opts.embed_size})
      {hidden, state} = frame |> project(opts) |> blocks(past, %{opts | dropout: 0.0})
      output = hidden |> final_norm(opts) |> head.()
      if not nodes?(output), do: raise(ArgumentError, "expected head to give a node, got: #{inspect(output)}")
      Axon.container({output, state})
    end

    # One, or a tuple or map of them. Of anything else Axon's container does not end.
    defp nodes?(%Axon{}), do: true
    defp nodes?(%_{}), do: false
    defp nodes?(%{} = of_nodes), do: of_nodes |> Map.values() |> Enum.all?(&nodes?/1)
    defp nodes?(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> Enum.all?(&nodes?/1)
    defp nodes?(_other), do: false

    @doc """
    The state of `build_step/1` before the first frame of `batch` sequences: zeros, by the names of the inputs. Options
    are those of `build_step/1`. Raises `ExPhil.Native.Error` where there is no memory for them.

    ## Examples

        iex> state = ExPhil.Native.Mamba.initial_state(embed_size: 8, hidden_size: 16, state_size: 4, num_layers: 1)
        iex> Nx.shape(state["mamba_block_1_ssm_state"])
        {1, 32, 4}
    """
    @spec initial_state(keyword, pos_integer) :: %{String.t() => Nx.Tensor.t()}
    def initial_state(opts, batch \\ 1) do
      if not (is_integer(batch) and batch > 0),
        do: raise(ArgumentError, "expected batch to be a positive integer, got: #{inspect(batch)}")

      {_head, opts} = Options.split!(opts, [:head])

      for {name, shape} <- kept(Options.read!(opts)), into: %{} do
        # Nx would end the BEAM where there is no memory.
        {name, shape |> put_elem(0, batch) |> Tensor.zeros() |> Tensor.to_nx()}
      end
    end

    defp kept(opts) do
      for index <- 1..opts.num_layers, state <- Block.kept(block_name(index), opts), into: %{}, do: state
    end

    # ExPhil's model has none where the sizes are equal; the other always has its embedding.
    defp project(input, %{embed_size: size, hidden_size: size, block: :exphil}), do: input
    defp project(input, opts), do: Axon.dense(input, opts.hidden_size, name: "input_projection")

    defp blocks(input, past, opts) do
      Enum.reduce(1..opts.num_layers, {input, %{}}, fn index, {stream, kept} ->
        {output, of_block} = Block.build(stream, past, block_name(index), opts)
        residual = Axon.add(stream, output, name: "residual_#{index}")
        stream = if index < opts.num_layers, do: dropped(residual, index, opts), else: residual
        {stream, Map.merge(kept, of_block)}
      end)
    end

    defp block_name(index), do: "mamba_block_#{index}"

    defp dropped(stream, index, %{dropout: rate}) do
      if rate > 0, do: Axon.dropout(stream, rate: rate, name: "dropout_#{index}"), else: stream
    end

    defp final_norm(hidden, %{block: :exphil}), do: hidden
    defp final_norm(hidden, %{block: :mamba_ssm}), do: Axon.rms_norm(hidden, name: "norm_f", epsilon: 1.0e-5)

    defp last_frame(tensor) do
      tensor |> Nx.slice_along_axis(Nx.axis_size(tensor, 1) - 1, 1, axis: 1) |> Nx.squeeze(axes: [1])
    end

    @doc """
    The scan of ExPhil's and Edifice's `Mamba`, with the arguments that theirs has there: `x` and `dt` `{batch, seq,
    channels}`, `b` and `c` `{batch, seq, state}`. It can stand in its place in their models.

    $A$ is -1, …, -state in every channel and dt is kept between 0.001 and 0.1, as there; and as there, the decay has
    the step size of the channel while the input has the mean of all channels.

    Options are `:scan`, those of `ExPhil.Native.SelectiveScan.scan/6`. Others are ignored: Axon hands over its own, such as
    `:mode`, to the function of a layer.
    """
    @spec exphil_scan(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), keyword) :: Nx.Tensor.t()
    def exphil_scan(x, b, c, dt, opts \\ []) do
      {x, dt, a} = exphil_inputs(x, b, c, dt)
      SelectiveScan.scan(x, dt, a, b, c, scan_options(opts))
    end

    @doc """
    The same, one frame on: `{y, state}`, with the shapes and options of `ExPhil.Native.SelectiveScan.step/7`.
    """
    @spec exphil_step(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), keyword) ::
            {Nx.Tensor.t(), Nx.Tensor.t()}
    def exphil_step(state, x, b, c, dt, opts \\ []) do
      {x, dt, a} = exphil_inputs(x, b, c, dt)
      of_nx!(state, :state)
      SelectiveScan.step(Nx.as_type(state, Nx.type(a)), x, dt, a, b, c, scan_options(opts))
    end

    defp scan_options(opts), do: SelectiveScan.Options.keywords!(opts)[:scan] || []

    defp exphil_inputs(x, b, c, dt) do
      for {name, tensor} <- [x: x, b: b, c: c, dt: dt], do: of_nx!(tensor, name)

      if Nx.shape(dt) != Nx.shape(x),
        do: Error.wrong!(:dt, "have the shape of x, #{inspect(Nx.shape(x))}", Nx.shape(dt))

      for {name, %{shape: {}}} <- [x: x, b: b],
          do: Error.wrong!(name, "have an axis of channels or states, the last", {})

      dt = Nx.clip(dt, @least_step, @greatest_step)
      shape = {Nx.axis_size(x, -1), Nx.axis_size(b, -1)}
      a = shape |> Nx.iota(axis: 1, type: Layers.own_type(x)) |> Nx.add(1) |> Nx.negate()
      # The scan multiplies x by the step size of its channel.
      scaled = x |> Nx.multiply(Nx.mean(dt, axes: [-1], keep_axes: true)) |> Nx.divide(dt)
      {Nx.as_type(scaled, Nx.type(x)), Nx.as_type(dt, Nx.type(x)), a}
    end

    # They go through Nx before the scan sees them.
    defp of_nx!(%Nx.Tensor{} = tensor, name), do: Tensor.given!(tensor, name)
    defp of_nx!(other, name), do: Error.wrong!(name, "be an Nx.Tensor", other)

    @doc """
    The parameters of a `block: :mamba_ssm` model from a safetensors file with the names of mamba_ssm or of Hugging Face
    (`layers.0.mixer.A_log`, `backbone.layers.0.mixer.A_log`): a map for the first of the functions that `Axon.build/2`
    returns, `init.(template, Axon.ModelState.new(map))`, which adds what the file has none of, as a head. Of a model in
    several files, as Hugging Face has large ones, give the list of them.
    `embedding` becomes `"input_projection"`, `norm_f` and `head` keep their names; what else is beside the layers is left.

    Tensors keep the type that they have in the file. Where that is not f32, `init` logs a warning for every one, and casts
    it to f32 (or what the model's `Axon.MixedPrecision` says); given to `predict` or to a serving as they are, they stay
    what they are. Biases that the file has none of, of convolutions and of `"input_projection"`, are zero.

    Of a model of language, the table of the embedding is the kernel of `"input_projection"`, and `lm_head` that of
    `"head"`. Where the file has no `lm_head`, the two are tied, and `"head"` is the table, too. Its tokens come in as
    frames of which one number is 1, as many as the table has rows, and its logits are those of the last frame:

        [embed_size: 50_280, hidden_size: 768, num_layers: 24, window_size: nil, block: :mamba_ssm]
        |> ExPhil.Native.Mamba.build()
        |> Axon.dense(50_280, name: "head", use_bias: false)

    Raises `ArgumentError` where the file holds no such layers, or lacks a tensor of them or `norm_f`, or holds layers of which
    more is known there than here, as those of Mamba-2; where a weight is there twice, in two files or by two of these
    names, or is not of floating point, as in a quantized checkpoint; and as
    `ExPhil.Native.Tensor.load_safetensors/1` does. A Falcon-Mamba is read and computes something else: it norms B, C and
    dt, of which its file says nothing.
    """
    @spec load_safetensors(Path.t() | [String.t(), ...]) :: %{String.t() => %{String.t() => Nx.Tensor.t()}}
    def load_safetensors(path), do: Weights.load(path)
  end
end
