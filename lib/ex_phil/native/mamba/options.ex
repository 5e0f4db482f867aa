if Code.ensure_loaded?(Axon) do
  defmodule ExPhil.Native.Mamba.Options do
    @moduledoc false
    # The options of a model: known, of their kinds, and under one name each.

    alias ExPhil.Native.{Error, Layers}
    alias ExPhil.Native.SelectiveScan.Options

    @defaults [
      block: :exphil,
      embed_size: nil,
      hidden_size: 256,
      state_size: 16,
      expand_factor: 2,
      conv_size: 4,
      num_layers: 2,
      dropout: 0.0,
      window_size: 60,
      scan: []
    ]

    # Edifice says embed_dim. ExPhil and Edifice let seq_len count before window_size.
    @other_names %{embed_size: [:embed_dim], window_size: [:seq_len, :window]}
    @sizes [:embed_size, :hidden_size, :state_size, :expand_factor, :conv_size, :num_layers]
    @blocks [:exphil, :mamba_ssm]

    defp names, do: Keyword.keys(@defaults) ++ List.flatten(Map.values(@other_names))

    @doc "Those of these names, which are none of the model's, and the others, which may be `also` of other names than the model's."
    def split!(opts, own, also \\ []), do: opts |> Options.among!(names() ++ own ++ also) |> Keyword.split(own)

    @doc "The options as a map, or `ArgumentError`."
    def read!(opts) do
      Options.among!(opts, names())
      one_width!(opts)
      options = Map.new(@defaults, fn {name, default} -> {name, given(opts, name, default)} end)
      for name <- @sizes, do: positive!(name, options[name])
      if options.window_size != nil, do: positive!(:window_size, options.window_size)

      if options.block not in @blocks do
        Error.wrong!("block", "be one of #{Error.list(@blocks)}", options.block)
      end

      rate = options.dropout

      if not (is_number(rate) and rate >= 0 and rate < 1),
        do: Error.wrong!("dropout", "be a rate from 0 to below 1", rate)

      if not Keyword.keyword?(options.scan), do: Error.wrong!("scan", "be a keyword list", options.scan)
      scan!(options)

      options
    end

    defp scan!(%{scan: scan} = options) do
      of_layer = of_layer(options)
      known = of_layer ++ Layers.of_scan()

      for {name, _value} <- scan,
          name not in known,
          do: Error.wrong!("options of scan", "be among #{known |> Enum.sort() |> Error.list()}", name)

      of_scan(options)
    end

    @doc "The options of the scan among those of a model, as `ExPhil.Native.SelectiveScan.Options`."
    def of_scan(options), do: options.scan |> Keyword.drop(of_layer(options)) |> Options.read!(:scan)

    defp of_layer(%{block: :mamba_ssm}), do: [:skip, :dt_bias]
    defp of_layer(_exphil), do: []

    # Of these neither counts before the other.
    defp one_width!(opts) do
      with {:ok, size} <- Keyword.fetch(opts, :embed_size),
           {:ok, dim} when dim != size <- Keyword.fetch(opts, :embed_dim),
           do: Error.wrong!("embed_dim", "be embed_size, #{inspect(size)}, where both are given", dim)
    end

    defp given(opts, name, default) do
      name = Enum.find(Map.get(@other_names, name, []) ++ [name], &Keyword.has_key?(opts, &1))
      if name, do: opts[name], else: default
    end

    defp positive!(name, value) do
      if not (is_integer(value) and value > 0), do: Error.wrong!(name, "be a positive integer", value)
    end
  end
end
