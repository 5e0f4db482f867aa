if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Mamba do
    @moduledoc """
    Mamba models in Axon over the native scan. Compiled where Axon is.

    There are two kinds of block:

      * `:exphil`, the block of ExPhil's and Edifice's `Mamba`, with the names of its layers and parameters, so that a
        checkpoint of one loads in the other;

      * `:mamba_ssm`, the block of Gu and Dao's own implementation, whose weights `load_safetensors/2` reads.

    Both are trained with `Axon.Loop` as any other model; the gradient of the scan is the native one.
    """
    alias ExPhil.Native.{Layers, SelectiveScan}
    alias ExPhil.Native.Mamba.Weights

    @defaults [
      block: :exphil,
      embed_size: nil,
      embed_dim: nil,
      hidden_size: 256,
      state_size: 16,
      expand_factor: 2,
      conv_size: 4,
      num_layers: 2,
      dropout: 0.0,
      window_size: 60,
      seq_len: nil,
      scan: []
    ]

    # Where ExPhil's and Edifice's models keep the step size.
    @least_step 0.001
    @greatest_step 0.1

    @doc """
    A model from `{batch, window_size, embed_size}`, the input `"state_sequence"`, to the last hidden state `{batch,
    hidden_size}`.

    ## Options

      * `:embed_size` (or `:embed_dim`) - features of a frame. Required.

      * `:hidden_size` - width of the residual stream. Default `256`.

      * `:state_size` - states of a channel. Default `16`.

      * `:expand_factor` - channels of the scan in multiples of `:hidden_size`. Default `2`.

      * `:conv_size` - frames that the convolution reaches over. Default `4`.

      * `:num_layers` - blocks. Default `2`.

      * `:dropout` - rate between blocks. Default `0.0`.

      * `:window_size` (or `:seq_len`) - frames of an input, `nil` for any number. Default `60`.

      * `:block` - `:exphil` or `:mamba_ssm`. Default `:exphil`.

      * `:scan` - options of the scan, such as `[method: :foh, backend: :cpu]`. Default `[]`.

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
      opts = opts |> Keyword.validate!(@defaults) |> Map.new()
      embed = opts.embed_dim || opts.embed_size

      if not (is_integer(embed) and embed > 0) do
        raise ArgumentError, "expected embed_size to be a positive integer, got: #{inspect(embed)}"
      end

      if opts.block not in [:exphil, :mamba_ssm] do
        raise ArgumentError, "expected block to be one of :exphil, :mamba_ssm, got: #{inspect(opts.block)}"
      end

      "state_sequence"
      |> Axon.input(shape: {nil, opts.seq_len || opts.window_size, embed})
      |> project(embed, opts)
      |> blocks(opts)
      |> Axon.nx(&last_frame/1, name: "last_timestep")
      |> final_norm(opts)
    end

    # ExPhil's model has none where the sizes are equal; the other always has its embedding.
    defp project(input, size, %{hidden_size: size, block: :exphil}), do: input
    defp project(input, _embed, opts), do: Axon.dense(input, opts.hidden_size, name: "input_projection")

    defp blocks(input, opts) do
      Enum.reduce(1..opts.num_layers//1, input, fn index, stream ->
        residual = Axon.add(stream, block(stream, "mamba_block_#{index}", opts), name: "residual_#{index}")

        if opts.dropout > 0 and index < opts.num_layers do
          Axon.dropout(residual, rate: opts.dropout, name: "dropout_#{index}")
        else
          residual
        end
      end)
    end

    defp final_norm(hidden, %{block: :exphil}), do: hidden
    defp final_norm(hidden, %{block: :mamba_ssm}), do: Axon.rms_norm(hidden, name: "norm_f", epsilon: 1.0e-5)

    defp last_frame(tensor) do
      tensor |> Nx.slice_along_axis(Nx.axis_size(tensor, 1) - 1, 1, axis: 1) |> Nx.squeeze(axes: [1])
    end

    defp block(stream, name, %{block: :exphil} = opts) do
      inner = opts.hidden_size * opts.expand_factor
      rank = max(div(opts.hidden_size, 16), 1)
      norm = Axon.layer_norm(stream, name: "#{name}_norm")
      {x, z} = norm |> Axon.dense(2 * inner, name: "#{name}_in_proj") |> halves(inner, name)
      x = convolved(x, name, opts)
      {b, c} = x |> Axon.dense(2 * opts.state_size, name: "#{name}_ssm_bc_proj") |> b_and_c(opts.state_size, name)

      dt =
        x
        |> Axon.dense(rank, name: "#{name}_ssm_dt_rank")
        |> Axon.dense(inner, name: "#{name}_ssm_dt_proj")
        |> Axon.activation(:softplus, name: "#{name}_ssm_dt_softplus")

      scanned =
        Axon.layer(&exphil_scan/5, [x, b, c, dt], name: "#{name}_ssm", op_name: :selective_scan, scan: opts.scan)

      gate = Axon.activation(z, :silu, name: "#{name}_gate_silu")

      scanned
      |> Axon.multiply(gate, name: "#{name}_gated")
      |> Axon.dense(opts.hidden_size, name: "#{name}_out_proj")
    end

    defp block(stream, name, %{block: :mamba_ssm} = opts) do
      inner = opts.hidden_size * opts.expand_factor
      rank = div(opts.hidden_size + 15, 16)
      norm = Axon.rms_norm(stream, name: "#{name}_norm", epsilon: 1.0e-5)
      {x, z} = norm |> Axon.dense(2 * inner, name: "#{name}_in_proj", use_bias: false) |> halves(inner, name)
      x = convolved(x, name, opts)
      all = Axon.dense(x, rank + 2 * opts.state_size, name: "#{name}_x_proj", use_bias: false)
      {b, c} = all |> part(rank, 2 * opts.state_size, "#{name}_bc") |> b_and_c(opts.state_size, name)

      dt =
        all |> part(0, rank, "#{name}_dt_low_rank") |> Axon.dense(inner, name: "#{name}_dt_proj", use_bias: false)

      %{x: x, dt: dt, b: b, c: c, z: z}
      |> Layers.selective_scan([name: "#{name}_ssm"] ++ opts.scan)
      |> Axon.dense(opts.hidden_size, name: "#{name}_out_proj", use_bias: false)
    end

    defp halves(node, inner, name) do
      {part(node, 0, inner, "#{name}_x_split"), part(node, inner, inner, "#{name}_z_split")}
    end

    defp b_and_c(node, state, name) do
      {part(node, 0, state, "#{name}_ssm_B"), part(node, state, state, "#{name}_ssm_C")}
    end

    defp part(node, from, length, name) do
      Axon.nx(node, &Nx.slice_along_axis(&1, from, length, axis: 2), name: name)
    end

    defp convolved(x, name, opts) do
      x
      |> Layers.causal_conv(size: opts.conv_size, name: "#{name}_conv_dw_conv")
      |> Axon.activation(:silu, name: "#{name}_conv_silu")
    end

    @doc """
    The scan of ExPhil's and Edifice's `Mamba`, with the arguments that theirs has there: `x` and `dt` `{batch, seq,
    channels}`, `b` and `c` `{batch, seq, state}`. It can stand in its place in their models.

    $A$ is -1, …, -state in every channel and dt is kept between 0.001 and 0.1, as there; and as there, the decay has
    the step size of the channel while the input has the mean of all channels.

    Options are `:scan`, those of `ExPhil.Native.SelectiveScan.scan/6`.
    """
    @spec exphil_scan(Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), Nx.Tensor.t(), keyword) :: Nx.Tensor.t()
    def exphil_scan(x, b, c, dt, opts \\ []) do
      dt = Nx.clip(dt, @least_step, @greatest_step)
      state = Nx.axis_size(b, 2)
      a = Nx.iota({Nx.axis_size(x, 2), state}, axis: 1, type: Nx.type(x)) |> Nx.add(1) |> Nx.negate()
      # The scan multiplies x by the step size of its channel.
      x = x |> Nx.multiply(Nx.mean(dt, axes: [2], keep_axes: true)) |> Nx.divide(dt)
      SelectiveScan.scan(x, dt, a, b, c, opts[:scan] || [])
    end

    @doc """
    The parameters of a `block: :mamba_ssm` model from a safetensors file with the names of mamba_ssm or of Hugging Face
    (`layers.0.mixer.A_log`, `backbone.layers.0.mixer.A_log`): a map to give to the function that `Axon.build/2` returns.
    `embedding` becomes `"input_projection"`, `norm_f` and `head` keep their names; what else is in the file is left.

    Raises `ArgumentError` where the file holds no such layers, and as `ExPhil.Native.Tensor.load_safetensors/1` does.
    """
    @spec load_safetensors(Path.t()) :: %{String.t() => %{String.t() => Nx.Tensor.t()}}
    def load_safetensors(path), do: Weights.load(path)
  end
end
