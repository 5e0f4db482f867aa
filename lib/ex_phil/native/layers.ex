if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Layers do
    @moduledoc """
    The selective scan and what stands around it in a Mamba block, as Axon layers. Compiled where Axon is.
    """
    alias ExPhil.Native.{Error, SelectiveScan}
    alias ExPhil.Native.SelectiveScan.{Check, Options}

    # The nodes that a layer has to be given, and those that it may be given.
    @nodes %{
      selective_scan: {[:x, :dt, :b, :c], [:z, :initial_state, :seq_idx]},
      selective_scan_step: {[:x, :dt, :b, :c, :state], [:z]}
    }
    # The options of the scan that are no tensors.
    @of_scan [:method, :coefficients, :bidirectional, :reverse, :dt_limit, :backend, :algorithm]

    # The range that Mamba draws the first step sizes from.
    @least_initial_step 0.001
    @greatest_initial_step 0.1

    @doc """
    A selective scan with its own parameters: $A = -e^{A_{log}}$, the skip connection $D$ and the bias of dt.

    `inputs` are the nodes `%{x: x, dt: dt, b: b, c: c}` and, where they are wanted, `:z`, the gate, `:initial_state`, and
    `:seq_idx` of packed rows, of the shapes and types of `ExPhil.Native.SelectiveScan`; the layer's output is that of
    `ExPhil.Native.SelectiveScan.scan/6`.

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

    Raises `ArgumentError` where a node is missing or is none, and where a node or an option is unknown: what the layer
    would not use it does not take.

    ## Examples

        iex> [x, dt] = for name <- ["x", "dt"], do: Axon.input(name, shape: {nil, 7, 6})
        iex> [b, c] = for name <- ["b", "c"], do: Axon.input(name, shape: {nil, 7, 4})
        iex> model = ExPhil.Native.Layers.selective_scan(%{x: x, dt: dt, b: b, c: c}, method: :foh)
        iex> inputs = for {name, width} <- [{"x", 6}, {"dt", 6}, {"b", 4}, {"c", 4}], into: %{} do
        ...>   {name, Nx.template({2, 7, width}, :f32)}
        ...> end
        iex> Axon.get_output_shape(model, inputs) |> Nx.shape()
        {2, 7, 6}

    ## Error cases

        iex> x = Axon.input("x", shape: {nil, 7, 6})
        iex> ExPhil.Native.Layers.selective_scan(%{x: x, dt: x})
        ** (ArgumentError) expected inputs to have :b, :c, got: :dt, :x
    """
    @spec selective_scan(%{atom => Axon.t()}, keyword) :: Axon.t()
    def selective_scan(inputs, opts \\ []), do: layer(:selective_scan, inputs, opts)

    @doc """
    The same layer one frame on, with the same parameters: `{y, state}`, two nodes. `inputs` are `%{x: x, dt: dt, b: b, c:
    c, state: state}`, with the state before the frame, and `:z` where there is a gate, of the shapes of
    `ExPhil.Native.SelectiveScan.step/7`. Options and errors are those of `selective_scan/2`; what a step refuses, such as
    `:reverse`, is refused here.

    ## Examples

        iex> [x, dt] = for name <- ["x", "dt"], do: Axon.input(name, shape: {nil, 6})
        iex> [b, c] = for name <- ["b", "c"], do: Axon.input(name, shape: {nil, 4})
        iex> state = Axon.input("state", shape: {nil, 6, 4})
        iex> {y, _state} = ExPhil.Native.Layers.selective_scan_step(%{x: x, dt: dt, b: b, c: c, state: state})
        iex> inputs = for {name, width} <- [{"x", 6}, {"dt", 6}, {"b", 4}, {"c", 4}], into: %{} do
        ...>   {name, Nx.template({2, width}, :f32)}
        ...> end
        iex> inputs = Map.put(inputs, "state", Nx.template({2, 6, 4}, :f32))
        iex> Axon.get_output_shape(y, inputs) |> Nx.shape()
        {2, 6}
    """
    @spec selective_scan_step(%{atom => Axon.t()}, keyword) :: {Axon.t(), Axon.t()}
    def selective_scan_step(inputs, opts \\ []), do: :selective_scan_step |> layer(inputs, opts) |> pair()

    @doc false
    # The two nodes of a layer that gives a pair.
    def pair(layer), do: {Axon.nx(layer, &elem(&1, 0)), Axon.nx(layer, &elem(&1, 1))}

    defp layer(operation, inputs, opts) do
      nodes = nodes!(operation, inputs)
      {own, opts} = options!(operation, opts)
      [per_channel, per_state] = for last <- [[:x], [:x, :b]], do: last_axes(last, Keyword.keys(nodes))

      tensors =
        nodes ++
          [a_log: Axon.param("A_log", per_state, initializer: &rates/3)] ++
          [d: if(own[:skip], do: Axon.param("D", per_channel, initializer: :ones))] ++
          [dt_bias: if(own[:dt_bias], do: Axon.param("dt_bias", per_channel, initializer: &step_biases/3))]

      {names, tensors} = tensors |> Enum.filter(&elem(&1, 1)) |> Enum.unzip()

      Axon.layer(of_list(length(tensors)), tensors,
        name: own[:name],
        op_name: operation,
        operation: operation,
        tensors: names,
        scan: opts
      )
    end

    # The nodes by their names; `nil` is none.
    defp nodes!(operation, inputs) when is_map(inputs) and not is_struct(inputs) do
      {needed, optional} = @nodes[operation]
      given = for {name, node} <- inputs, node != nil, do: name

      unknown = given -- (needed ++ optional)
      if unknown != [], do: expected("inputs", "be among #{list(needed ++ optional)}", list(unknown))
      missing = needed -- given
      if missing != [], do: expected("inputs", "have #{list(missing)}", list(given))
      for name <- needed ++ optional, name in given, do: {name, node!(name, inputs[name])}
    end

    defp nodes!(_operation, other), do: expected("inputs", "be a map of nodes", inspect(other))

    defp node!(_name, %Axon{} = node), do: node
    defp node!(name, other), do: expected(name, "be a node of Axon", inspect(other))

    # Those of the layer, and those of the scan.
    defp options!(operation, opts) do
      defaults = [skip: true, dt_bias: true, dt_softplus: true]
      opts = Options.among!(opts, [:name | Keyword.keys(defaults)] ++ @of_scan)
      {own, of_scan} = defaults |> Keyword.merge(opts) |> Keyword.split([:name, :skip, :dt_bias])

      for name <- [:skip, :dt_bias], not is_boolean(own[name]) do
        expected(name, "be a boolean", inspect(own[name]))
      end

      # Else the scan would refuse them, but not before a model is run.
      options = Options.read!(of_scan, :scan)
      if operation == :selective_scan_step, do: Check.causal!(options, nil)
      {own, of_scan}
    end

    @doc false
    # The options of the scan that a layer takes.
    def of_scan, do: [:dt_softplus | @of_scan]

    defp list(names), do: names |> Enum.sort() |> Error.list()

    defp expected(name, what, got), do: raise(ArgumentError, "expected #{name} to #{what}, got: #{got}")

    # Axon hands the shape of every input over as an argument,
    for count <- 4..7 do
      shapes = Macro.generate_arguments(count, __MODULE__)

      defp last_axes(of, names) when length(names) == unquote(count) do
        fn unquote_splicing(shapes) ->
          shapes = Enum.zip(names, unquote(shapes))
          for(name <- of, do: last_axis(shapes[name])) |> List.to_tuple()
        end
      end
    end

    # and every tensor.
    for count <- 5..10 do
      tensors = Macro.generate_arguments(count, __MODULE__)

      defp of_list(unquote(count)) do
        fn unquote_splicing(tensors), opts ->
          scan(opts[:operation], Enum.zip(opts[:tensors], unquote(tensors)), opts[:scan])
        end
      end
    end

    defp scan(operation, tensors, opts) do
      {given, optional} = Keyword.split(tensors, [:x, :dt, :b, :c, :a_log, :state])
      own = own_type(given[:x])
      a = given[:a_log] |> Nx.as_type(own) |> Nx.exp() |> Nx.negate()
      opts = opts ++ for({name, tensor} <- optional, do: {name, tensor |> in_own_type(name, own)})
      run(operation, given, a, opts)
    end

    defp run(:selective_scan, given, a, opts) do
      SelectiveScan.scan(given[:x], given[:dt], a, given[:b], given[:c], opts)
    end

    defp run(:selective_scan_step, given, a, opts) do
      state = Nx.as_type(given[:state], Nx.type(a))
      SelectiveScan.step(state, given[:x], given[:dt], a, given[:b], given[:c], opts)
    end

    defp in_own_type(tensor, name, _own) when name in [:z, :seq_idx], do: tensor
    defp in_own_type(tensor, _parameter_or_state, own), do: Nx.as_type(tensor, own)

    @doc false
    # Of the parameters and states of a scan over x: f32, whatever a policy of mixed precision makes of them.
    def own_type(x), do: if(Nx.type(x) == {:f, 64}, do: {:f, 64}, else: {:f, 32})

    @doc """
    A convolution over time in which every channel has a kernel of its own and no frame sees a later one: `{batch, seq,
    channels}` to the same. Its parameters are `"kernel"`, `{size, 1, channels}`, and `"bias"`, `{channels}`: those of an
    `Axon.conv/3` with as many groups as channels and padding on the left, which it computes as `size` products.

    ## Options

      * `:size` - frames that the kernel reaches over. Default `4`.

      * `:name` - the name of the layer
    """
    @spec causal_conv(Axon.t(), keyword) :: Axon.t()
    def causal_conv(x, opts \\ []), do: convolution(:causal_conv, &convolve/4, [node!(:x, x)], opts)

    @doc """
    The same layer one frame on, with the same parameters: `{y, window}`, two nodes. `x` is a frame, `{batch, channels}`,
    and `window` the frames before it, `{batch, size, channels}`, of which the last `size - 1` count; the one that comes
    back has the new frame last.
    """
    @spec causal_conv_step(Axon.t(), Axon.t(), keyword) :: {Axon.t(), Axon.t()}
    def causal_conv_step(x, window, opts \\ []) do
      nodes = [node!(:x, x), node!(:window, window)]
      :causal_conv_step |> convolution(&convolve_step/5, nodes, opts) |> pair()
    end

    defp convolution(name, operation, inputs, opts) do
      opts = Keyword.merge([size: 4], Options.among!(opts, [:name, :size]))

      if not (is_integer(opts[:size]) and opts[:size] > 0) do
        Error.wrong!(:size, "be a positive integer", opts[:size])
      end

      count = length(inputs)
      kernel = Axon.param("kernel", of_first(count, &{opts[:size], 1, last_axis(&1)}))
      bias = Axon.param("bias", of_first(count, &{last_axis(&1)}), initializer: :zeros)
      Axon.layer(operation, inputs ++ [kernel, bias], name: opts[:name], op_name: name)
    end

    defp of_first(1, shape), do: fn x -> shape.(x) end
    defp of_first(2, shape), do: fn x, _window -> shape.(x) end

    defp last_axis({}), do: expected("a node", "have an axis of channels or states, the last", "shape {}")
    defp last_axis(shape), do: elem(shape, tuple_size(shape) - 1)

    defp convolve(x, kernel, bias, _opts) do
      if Nx.rank(x) != 3, do: expected(:x, "have shape {batch, seq, channels}", inspect(Nx.shape(x)))
      size = Nx.axis_size(kernel, 0)
      x |> Nx.pad(zero(x), [{0, 0, 0}, {size - 1, 0, 0}, {0, 0, 0}]) |> weighed(kernel, bias, Nx.axis_size(x, 1))
    end

    defp convolve_step(x, window, kernel, bias, _opts) do
      if Nx.rank(x) != 2, do: expected(:x, "have shape {batch, channels}", inspect(Nx.shape(x)))
      {batch, channels} = Nx.shape(x)
      expected = {batch, Nx.axis_size(kernel, 0), channels}
      # Of another length, other frames than the last would count.
      if Nx.shape(window) != expected,
        do: expected(:window, "have shape #{inspect(expected)}", inspect(Nx.shape(window)))

      now = Nx.new_axis(x, 1)

      [at_end, moved] =
        for config <- [{Nx.axis_size(window, 1) - 1, 0, 0}, {-1, 1, 0}], do: [{0, 0, 0}, config, {0, 0, 0}]

      window = window |> Nx.pad(zero(window), moved) |> Nx.add(Nx.pad(now, zero(x), at_end))
      {window |> weighed(kernel, bias, 1) |> Nx.squeeze(axes: [1]), window}
    end

    # The sum over the reach of the kernel, of so many frames.
    defp weighed(padded, kernel, bias, seq) do
      {size, 1, channels} = Nx.shape(kernel)

      for offset <- 0..(size - 1) do
        weight = kernel |> Nx.slice_along_axis(offset, 1, axis: 0) |> Nx.reshape({channels})
        padded |> Nx.slice_along_axis(offset, seq, axis: 1) |> Nx.multiply(weight)
      end
      |> Enum.reduce(bias, &Nx.add/2)
    end

    defp zero(tensor), do: Nx.tensor(0, type: Nx.type(tensor))

    defp rates(shape, type, _key) do
      Nx.iota(shape, axis: 1, type: type) |> Nx.add(1) |> Nx.log()
    end

    # softplus⁻¹(s) = s + log(1 - e⁻ˢ)
    defp step_biases(shape, type, key) do
      [low, high] = Enum.map([@least_initial_step, @greatest_initial_step], &:math.log/1)
      {uniform, _key} = Nx.Random.uniform(key, low, high, shape: shape, type: type)
      step = Nx.exp(uniform)
      step |> Nx.negate() |> Nx.expm1() |> Nx.negate() |> Nx.log() |> Nx.add(step)
    end
  end
end
