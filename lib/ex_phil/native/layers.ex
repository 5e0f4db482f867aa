if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Layers do
    @moduledoc """
    The selective scan and what stands around it in a Mamba block, as Axon layers. Compiled where Axon is.
    """
    alias ExPhil.Native.SelectiveScan

    # The range that Mamba draws the first step sizes from.
    @least_step 0.001
    @greatest_step 0.1

    @doc """
    A selective scan with its own parameters: $A = -e^{A_{log}}$, the skip connection $D$ and the bias of dt.

    `inputs` are the nodes `%{x: x, dt: dt, b: b, c: c}`, and `:z` where there is a gate, of the shapes of
    `ExPhil.Native.SelectiveScan`; the layer's output is that of `ExPhil.Native.SelectiveScan.scan/6`.

    | parameter | shape | begins as |
    |---|---|---|
    | `"A_log"` | `{dim, state}` | log 1 … log state, as in Mamba (S4D-Real) |
    | `"D"` | `{dim}` | 1 |
    | `"dt_bias"` | `{dim}` | what softplus makes a step size of, uniform in the logarithm between 0.001 and 0.1 |

    ## Options

      * `:name` - the name of the layer

      * `:skip` - whether there is a `"D"`. Default `true`.

      * `:dt_bias` - whether there is a `"dt_bias"`. Default `true`.

      * `:dt_softplus` - whether dt passes through softplus. Default `true`.

      * every other option of the scan that is not a tensor: `:method`, `:coefficients`, `:bidirectional`, `:reverse`,
        `:dt_limit`, `:backend`, `:algorithm`

    ## Examples

        iex> [x, dt] = for name <- ["x", "dt"], do: Axon.input(name, shape: {nil, 7, 6})
        iex> [b, c] = for name <- ["b", "c"], do: Axon.input(name, shape: {nil, 7, 4})
        iex> model = ExPhil.Native.Layers.selective_scan(%{x: x, dt: dt, b: b, c: c}, method: :foh)
        iex> inputs = for {name, width} <- [{"x", 6}, {"dt", 6}, {"b", 4}, {"c", 4}], into: %{} do
        ...>   {name, Nx.template({2, 7, width}, :f32)}
        ...> end
        iex> Axon.get_output_shape(model, inputs) |> Nx.shape()
        {2, 7, 6}
    """
    @spec selective_scan(%{atom => Axon.t()}, keyword) :: Axon.t()
    def selective_scan(%{x: x, dt: dt, b: b, c: c} = inputs, opts \\ []) do
      {skip, opts} = Keyword.pop(opts, :skip, true)
      {dt_bias, opts} = Keyword.pop(opts, :dt_bias, true)
      {name, opts} = Keyword.pop(opts, :name)
      opts = Keyword.put_new(opts, :dt_softplus, true)
      nodes = [x: x, dt: dt, b: b, c: c] ++ if(inputs[:z], do: [z: inputs.z], else: [])
      [per_channel, per_state] = for axes <- [[x: 2], [x: 2, b: 2]], do: shape(axes, Keyword.keys(nodes))

      tensors =
        nodes ++
          [a_log: Axon.param("A_log", per_state, initializer: &rates/3)] ++
          [d: if(skip, do: Axon.param("D", per_channel, initializer: :ones))] ++
          [dt_bias: if(dt_bias, do: Axon.param("dt_bias", per_channel, initializer: &step_biases/3))]

      {names, tensors} = tensors |> Enum.filter(&elem(&1, 1)) |> Enum.unzip()

      Axon.layer(operation(length(tensors)), tensors,
        name: name,
        op_name: :selective_scan,
        tensors: names,
        scan: opts
      )
    end

    # Axon hands the shape of every input over as an argument,
    for count <- 4..5 do
      shapes = Macro.generate_arguments(count, __MODULE__)

      defp shape(axes, names) when length(names) == unquote(count) do
        fn unquote_splicing(shapes) ->
          shapes = Enum.zip(names, unquote(shapes))
          for({name, axis} <- axes, do: elem(shapes[name], axis)) |> List.to_tuple()
        end
      end
    end

    # and every tensor.
    for count <- 5..8 do
      tensors = Macro.generate_arguments(count, __MODULE__)

      defp operation(unquote(count)) do
        fn unquote_splicing(tensors), opts -> scan(Enum.zip(opts[:tensors], unquote(tensors)), opts[:scan]) end
      end
    end

    defp scan(tensors, opts) do
      {given, optional} = Keyword.split(tensors, [:x, :dt, :b, :c, :a_log])
      a = given[:a_log] |> Nx.exp() |> Nx.negate()
      SelectiveScan.scan(given[:x], given[:dt], a, given[:b], given[:c], opts ++ optional)
    end

    @doc """
    A convolution over time in which every channel has a kernel of its own and no frame sees a later one: `{batch, seq,
    channels}` to the same. Its parameters are `"kernel"`, `{size, 1, channels}`, and `"bias"`, `{channels}`: those of an
    `Axon.conv/3` with as many groups as channels and padding on the left, which it computes as `size` products.

    ## Options

      * `:size` - frames that the kernel reaches over. Default `4`.

      * `:name` - the name of the layer
    """
    @spec causal_conv(Axon.t(), keyword) :: Axon.t()
    def causal_conv(%Axon{} = x, opts \\ []) do
      opts = Keyword.validate!(opts, [:name, size: 4])
      kernel = Axon.param("kernel", [opts[:size], 1, {:axis, -1}])
      bias = Axon.param("bias", [{:axis, -1}], initializer: :zeros)
      Axon.layer(&convolve/4, [x, kernel, bias], name: opts[:name], op_name: :causal_conv)
    end

    defp convolve(x, kernel, bias, _opts) do
      {size, 1, channels} = Nx.shape(kernel)
      seq = Nx.axis_size(x, 1)
      padded = Nx.pad(x, Nx.tensor(0, type: Nx.type(x)), [{0, 0, 0}, {size - 1, 0, 0}, {0, 0, 0}])

      for offset <- 0..(size - 1) do
        weight = kernel |> Nx.slice_along_axis(offset, 1, axis: 0) |> Nx.reshape({channels})
        padded |> Nx.slice_along_axis(offset, seq, axis: 1) |> Nx.multiply(weight)
      end
      |> Enum.reduce(bias, &Nx.add/2)
    end

    defp rates(shape, type, _key) do
      Nx.iota(shape, axis: 1, type: type) |> Nx.add(1) |> Nx.log()
    end

    # softplus⁻¹(s) = s + log(1 - e⁻ˢ)
    defp step_biases(shape, type, key) do
      [low, high] = Enum.map([@least_step, @greatest_step], &:math.log/1)
      {uniform, _key} = Nx.Random.uniform(key, low, high, shape: shape, type: type)
      step = Nx.exp(uniform)
      step |> Nx.negate() |> Nx.expm1() |> Nx.negate() |> Nx.log() |> Nx.add(step)
    end
  end
end
