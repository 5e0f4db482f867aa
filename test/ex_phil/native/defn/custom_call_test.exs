if Code.ensure_loaded?(Nx) and function_exported?(Nx, :block, 4) do
  # EXLA cannot be everywhere, but its protocol is two small files: EXPHIL_EXLA names the folder lib/exla of its source.
  # Without it a double of the same form stands in.
  unless Code.ensure_loaded?(EXLA.CustomCall) do
    if source = System.get_env("EXPHIL_EXLA") do
      for file <- ["custom_call/spec.ex", "custom_call.ex"], do: Code.require_file(Path.join(source, file))
    else
      defmodule EXLA.CustomCall.Spec do
        @enforce_keys [:call_target_name]
        defstruct [:call_target_name, attributes: [], operand_element_types: :default]
      end

      defprotocol EXLA.CustomCall do
        def call(struct, out, args, client)
      end
    end

    Code.require_file("../../../../lib/ex_phil/native/defn/exla.ex", __DIR__)
  end

  defmodule ExPhil.Native.Defn.CustomCallTest do
    # What EXLA is told to put in the place of our blocks.
    use ExUnit.Case, async: false

    import ExPhil.Native.Scans
    alias ExPhil.Native.Defn.{Block, CustomCall}
    alias ExPhil.Native.{SelectiveScan, Tensor}

    # Where a call becomes a custom call, by the backend that was asked for.
    @platforms %{
      nil => [:host, :cuda],
      :auto => [:host, :cuda],
      :cpu => [:host],
      :cuda => [:cuda],
      {:cuda, 1} => [],
      :nx => []
    }

    # The blocks of an expression, as a compiler meets them.
    defp blocks(fun, tensors) do
      {:ok, found} = Agent.start_link(fn -> [] end)
      expression = Nx.Defn.debug_expr(fun).(tensors)
      visit(expression, found)
      Agent.get(found, & &1) |> Enum.uniq()
    end

    defp visit(expression, found) do
      Nx.Defn.Composite.traverse(expression, fn tensor -> visit_tensor(tensor, found) end)
    end

    defp visit_tensor(%{data: %{op: :block, args: [block, operands, results, _default]}} = tensor, found) do
      Agent.update(found, &[{block, operands, results} | &1])
      Enum.each(operands, &visit_tensor(&1, found))
      tensor
    end

    defp visit_tensor(tensor, found) do
      Nx.Defn.Tree.apply_args(tensor, nil, fn arg, acc -> {visit_tensor(arg, found), acc} end)
      tensor
    end

    defp loss(inputs, opts) do
      {y, state} =
        SelectiveScan.scan_with_state(inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c, [{:z, inputs.z} | opts])

      Nx.add(Nx.sum(y), Nx.sum(state))
    end

    defp inputs do
      random(seq: 200)
      |> Map.take([:x, :dt, :a, :b, :c, :z])
      |> Map.new(fn {name, t} -> {name, Tensor.to_nx(t)} end)
    end

    defp both(opts) do
      found = blocks(fn inputs -> Nx.Defn.grad(inputs, &loss(&1, opts)) end, inputs())
      # The forward pass is there for what it keeps.
      assert [%Block.Backward{}, %Block.Forward{}] =
               found |> Enum.map(&elem(&1, 0)) |> Enum.sort_by(& &1.__struct__)

      Enum.sort_by(found, &elem(&1, 0).__struct__)
    end

    # What a forward and a backward call are to give beside their results. On a machine with a CUDA device that is memory to
    # work in, too, whose size is the device's own affair.
    defp extras(opts) do
      options = SelectiveScan.Options.read!(opts, :scan)
      bidirectional = SelectiveScan.Options.both_ways?(options)
      {[kept | forward], backward} = CustomCall.extras(inputs(), %{options | bidirectional: bidirectional})
      workspaces = [forward, backward]
      if not SelectiveScan.cuda_available?(), do: assert(workspaces == [[], []])
      for workspace <- workspaces, do: assert(workspace == [] or match?([{:workspace, {_}, {:u, 8}}], workspace))
      {kept, Enum.map(workspaces, fn tensors -> for {name, _, _} <- tensors, do: " #{name}" end)}
    end

    test "targets, operands, results and attributes are those of the native handlers" do
      opts = [method: :poly, dt_softplus: true, dt_limit: {0.01, :infinity}]
      [{backward, operands, gradients}, {forward, given, results}] = both(opts)
      {_kept, [of_forward, of_backward]} = extras(opts)

      options = [
        {"method", ~s("poly")},
        {"coefficients", ~s("exact")},
        {"bidirectional", "1 : i64"},
        {"reverse", "0 : i64"},
        {"dt_softplus", "1 : i64"},
        {"dt_limit_min", "0.01 : f64"}
      ]

      names = [{"operands", ~s("x dt a b c z")}, {"results", ~s("y final_state boundary_states#{of_forward}")}]
      shapes = "2,200,6 2,200,6 6,4 2,200,4 2,200,4 2,200,6"

      assert CustomCall.call(forward) ==
               {"exphil_selective_scan_fwd", names ++ [{"shapes", ~s("#{shapes}")} | options]}

      assert {length(given), tuple_size(results)} == {6, 3 + length(of_forward)}

      all = ~s("x dt a b c z dy dfinal_state boundary_states")
      names = [{"operands", all}, {"results", ~s("x dt a b c z#{of_backward}")}]
      {target, [operands_named, results_named, {"shapes", shapes} | rest]} = CustomCall.call(backward)
      assert {target, [operands_named, results_named], rest} == {"exphil_selective_scan_bwd", names, options}
      # Two directions of chunks whose length is the backend's own affair.
      assert shapes =~ ~r/^"2,200,6 2,200,6 6,4 2,200,4 2,200,4 2,200,6 2,200,6 2,6,4 2,2,\d+,6,4"$/
      assert {length(operands), tuple_size(gradients)} == {9, 6 + length(of_backward)}
      # Nothing that XLA could lay out in more than one way.
      assert Enum.all?(
               operands ++ given ++ Tuple.to_list(gradients) ++ Tuple.to_list(results),
               &(Nx.rank(&1) == 1)
             )
    end

    test "a limit of zero is one, and so is the upper" do
      for {block, _operands, _results} <- both(dt_limit: {0, 0.1}) do
        {_target, attributes} = CustomCall.call(block)
        assert Enum.take(attributes, -2) == [{"dt_limit_min", "0.0 : f64"}, {"dt_limit_max", "0.1 : f64"}]
      end
    end

    test "EXLA compiles the default of a block where there is no XLA to take the handlers" do
      assert SelectiveScan.xla_register() == :no_xla

      for {block, operands, results} <- both([]), platform <- [:host, :cuda, :rocm] do
        assert EXLA.CustomCall.call(block, results, operands, %{platform: platform}) == :skip
      end
    end

    test "a backend that was asked for is not replaced, nor a platform without handlers" do
      for {backend, platforms} <- @platforms do
        options = SelectiveScan.Options.read!([backend: backend], :scan)

        assert {backend, Enum.filter([:host, :cuda, :rocm], &CustomCall.fits?(options, &1))} ==
                 {backend, platforms}
      end
    end

    test "what the environment asks for counts where no option does" do
      on_exit(fn -> System.delete_env("EXPHIL_SCAN_BACKEND") end)
      [left_open, on_cpu] = for opts <- [[], [backend: :cpu]], do: SelectiveScan.Options.read!(opts, :scan)

      for {word, backend} <- [{"auto", :auto}, {"cpu", :cpu}, {"cuda", :cuda}, {"cuda:1", {:cuda, 1}}, {"nx", :nx}] do
        System.put_env("EXPHIL_SCAN_BACKEND", word)
        platforms = @platforms[backend]
        assert {word, Enum.filter([:host, :cuda, :rocm], &CustomCall.fits?(left_open, &1))} == {word, platforms}
        assert Enum.filter([:host, :cuda, :rocm], &CustomCall.fits?(on_cpu, &1)) == [:host]
      end
    end

    test "what the handlers ask for beside the results does no harm without them" do
      inputs = inputs()
      assert {{:boundary_states, {1, 2, _chunks, 6, 4}, {:f, 32}}, _} = extras([])
      native = Nx.Defn.grad(inputs, &loss(&1, []))
      nx = Nx.Defn.grad(inputs, &loss(&1, backend: :nx))
      for {name, wanted} <- nx, do: assert(distance(Tensor.from_nx(native[name]), Tensor.from_nx(wanted)) < 1.0e-5)
    end
  end
end
