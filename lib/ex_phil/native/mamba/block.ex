if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Mamba.Block do
    @moduledoc false
    # One block of a model, in either kind, over whole sequences, `{batch, seq, hidden}`, or over one frame of every
    # row, `{batch, hidden}`, with what is kept of the frames before it. The layers and their parameters are the same,
    # so that what was trained on sequences runs frame by frame.
    alias ExPhil.Native.{Layers, Mamba}

    @doc """
    The shapes of what a block keeps from frame to frame, by the names of the inputs of a model that steps: the frames
    that its convolution reaches over, and the state of its scan.
    """
    def kept(name, opts) do
      inner = opts.hidden_size * opts.expand_factor

      %{
        "#{name}_conv_state" => {nil, opts.conv_size, inner},
        "#{name}_ssm_state" => {nil, inner, opts.state_size}
      }
    end

    @doc """
    `{output, kept}` of a block. `past` are the nodes of what was kept, by their names; `nil` over whole sequences, which
    keep nothing.
    """
    def build(stream, past, name, %{block: :exphil} = opts) do
      inner = opts.hidden_size * opts.expand_factor
      rank = max(div(opts.hidden_size, 16), 1)
      norm = Axon.layer_norm(stream, name: "#{name}_norm")
      {x, z} = norm |> Axon.dense(2 * inner, name: "#{name}_in_proj") |> halves(inner, name)
      {x, window} = convolved(x, past, name, opts)
      {b, c} = x |> Axon.dense(2 * opts.state_size, name: "#{name}_ssm_bc_proj") |> b_and_c(opts.state_size, name)

      dt =
        x
        |> Axon.dense(rank, name: "#{name}_ssm_dt_rank")
        |> Axon.dense(inner, name: "#{name}_ssm_dt_proj")
        |> Axon.activation(:softplus, name: "#{name}_ssm_dt_softplus")

      {scanned, state} = exphil_scan([x, b, c, dt], past, name, opts)
      gate = Axon.activation(z, :silu, name: "#{name}_gate_silu")

      output =
        scanned
        |> Axon.multiply(gate, name: "#{name}_gated")
        |> Axon.dense(opts.hidden_size, name: "#{name}_out_proj")

      {output, keep(past, name, window, state)}
    end

    def build(stream, past, name, %{block: :mamba_ssm} = opts) do
      inner = opts.hidden_size * opts.expand_factor
      rank = div(opts.hidden_size + 15, 16)
      norm = Axon.rms_norm(stream, name: "#{name}_norm", epsilon: 1.0e-5)
      {x, z} = norm |> Axon.dense(2 * inner, name: "#{name}_in_proj", use_bias: false) |> halves(inner, name)
      {x, window} = convolved(x, past, name, opts)
      all = Axon.dense(x, rank + 2 * opts.state_size, name: "#{name}_x_proj", use_bias: false)
      {b, c} = all |> part(rank, 2 * opts.state_size, "#{name}_bc") |> b_and_c(opts.state_size, name)

      dt =
        all |> part(0, rank, "#{name}_dt_low_rank") |> Axon.dense(inner, name: "#{name}_dt_proj", use_bias: false)

      {scanned, state} = scan(%{x: x, dt: dt, b: b, c: c, z: z}, past, name, opts)

      {Axon.dense(scanned, opts.hidden_size, name: "#{name}_out_proj", use_bias: false),
       keep(past, name, window, state)}
    end

    defp halves(node, inner, name) do
      {part(node, 0, inner, "#{name}_x_split"), part(node, inner, inner, "#{name}_z_split")}
    end

    defp b_and_c(node, state, name) do
      {part(node, 0, state, "#{name}_ssm_B"), part(node, state, state, "#{name}_ssm_C")}
    end

    defp part(node, from, length, name) do
      Axon.nx(node, &Nx.slice_along_axis(&1, from, length, axis: -1), name: name)
    end

    defp convolved(x, past, name, opts) do
      conv = [size: opts.conv_size, name: "#{name}_conv_dw_conv"]

      {x, window} =
        if past do
          Layers.causal_conv_step(x, past["#{name}_conv_state"], conv)
        else
          {Layers.causal_conv(x, conv), nil}
        end

      {Axon.activation(x, :silu, name: "#{name}_conv_silu"), window}
    end

    defp exphil_scan(inputs, nil, name, opts) do
      {Axon.layer(&Mamba.exphil_scan/5, inputs, name: "#{name}_ssm", op_name: :selective_scan, scan: opts.scan),
       nil}
    end

    defp exphil_scan(inputs, past, name, opts) do
      options = [name: "#{name}_ssm", op_name: :selective_scan_step, scan: opts.scan]
      Layers.pair(Axon.layer(&Mamba.exphil_step/6, [past["#{name}_ssm_state"] | inputs], options))
    end

    defp scan(inputs, nil, name, opts),
      do: {Layers.selective_scan(inputs, [name: "#{name}_ssm"] ++ opts.scan), nil}

    defp scan(inputs, past, name, opts) do
      inputs
      |> Map.put(:state, past["#{name}_ssm_state"])
      |> Layers.selective_scan_step([name: "#{name}_ssm"] ++ opts.scan)
    end

    defp keep(nil, _name, nil, nil), do: %{}
    defp keep(_past, name, window, state), do: %{"#{name}_conv_state" => window, "#{name}_ssm_state" => state}
  end
end
