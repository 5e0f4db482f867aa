# Where the package is not among the dependencies, this stands in for it: events go to who asked for them.
unless Code.ensure_loaded?(:telemetry) do
  defmodule :telemetry do
    def attach(id, event, handler, config), do: :persistent_term.put({:handler, id}, {event, handler, config})
    def detach(id), do: :persistent_term.erase({:handler, id})

    def execute(event, measurements, metadata) do
      for {{:handler, _}, {^event, handler, config}} <- :persistent_term.get() do
        handler.(event, measurements, metadata, config)
      end

      :ok
    end
  end
end

if Code.ensure_loaded?(Nx.Pointer) do
  defmodule ExPhil.Native.BackendWithoutAddresses do
    # As Torchx's is: it has the function, which says that it has none.
    defstruct [:host]

    def init(opts), do: opts
    def of(tensor), do: %{tensor | data: %__MODULE__{host: tensor}}
    def to_binary(tensor, limit), do: Nx.BinaryBackend.to_binary(tensor.data.host, limit)
    def to_pointer(_tensor, _opts), do: raise("operation to_pointer is not supported")
  end
end

defmodule ExPhil.Native.SelectiveScan.BackendTest do
  # Which backend runs, who decides it, and what is said where it is not the one that was to run.
  use ExUnit.Case, async: false

  import ExPhil.Native.Scans
  import ExUnit.CaptureLog
  alias ExPhil.Native.{Error, SelectiveScan, Tensor}
  alias ExPhil.Native.SelectiveScan.{Cost, Devices, Fallback, Options}

  @variable "EXPHIL_SCAN_BACKEND"
  # No machine has so many devices.
  @nowhere [backend: {:cuda, 99}]

  setup do
    on_exit(fn -> System.delete_env(@variable) end)
    {:ok, inputs: random([])}
  end

  defp call(inputs, :backward, opts), do: apply(SelectiveScan, :backward, [inputs.z | args(inputs)] ++ [opts])
  defp call(inputs, function, opts), do: apply(SelectiveScan, function, args(inputs) ++ [opts])
  defp args(inputs), do: [inputs.x, inputs.dt, inputs.a, inputs.b, inputs.c]

  test "the option decides, else the variable, else what there is", %{inputs: inputs} do
    assert call(inputs, :backend_for, backend: :cpu) == {:cpu, "asked for by backend: :cpu"}
    System.put_env(@variable, "cpu")
    assert call(inputs, :backend_for, []) == {:cpu, "asked for by EXPHIL_SCAN_BACKEND=cpu"}
    System.put_env(@variable, "nx")
    assert call(inputs, :backend_for, backend: :cpu) == {:cpu, "asked for by backend: :cpu"}
    System.put_env(@variable, "")
    assert {:cpu, _} = call(inputs, :backend_for, [])
    assert call(inputs, :scan, backend: :auto) == call(inputs, :scan, backend: :cpu)
  end

  test "the variable is obeyed and checked", %{inputs: inputs} do
    for wrong <- ["gpu", "cuda:x", "cuda:1x", "cuda:-1", "cuda:", "CPU"] do
      System.put_env(@variable, wrong)

      assert assert_raise(ArgumentError, fn -> call(inputs, :scan, []) end).message ==
               "expected the environment variable EXPHIL_SCAN_BACKEND to be one of auto, cpu, cuda, cuda:1, nx, " <>
                 "got: #{inspect(wrong)}"
    end
  end

  @tag :no_nx
  test "without Nx, it cannot be forced", %{inputs: inputs} do
    error = assert_raise Error, ~r/the nx backend cannot run: .*; use/, fn -> call(inputs, :scan, backend: :nx) end
    assert error.kind == :unavailable
    System.put_env(@variable, "nx")
    assert_raise Error, ~r/the nx backend cannot run: .*; use/, fn -> call(inputs, :scan, []) end
  end

  @tag :nx
  test "with Nx, it gives what the native library gives", %{inputs: inputs} do
    native = call(inputs, :scan, backend: :cpu)
    assert call(inputs, :backend_for, backend: :nx) == {:nx, "asked for by backend: :nx"}
    assert distance(call(inputs, :scan, backend: :nx), native) < 2.0e-6
    System.put_env(@variable, "nx")
    assert call(inputs, :backend_for, []) == {:nx, "asked for by EXPHIL_SCAN_BACKEND=nx"}
    assert distance(call(inputs, :scan, []), native) < 2.0e-6
  end

  test "a backend that was asked for and cannot run says why, and what to do", %{inputs: inputs} do
    error = assert_raise Error, fn -> call(inputs, :scan, @nowhere) end
    assert error.kind == :unavailable
    assert error.message =~ "the cuda backend cannot run: "
  end

  test "a wrong call is told so, whether the backend that it asks for can run or not", %{inputs: inputs} do
    frames = for name <- [:x, :dt, :b, :c], into: inputs, do: {name, frame(inputs[name], 0)}
    step = &SelectiveScan.step(&1.initial_state, &1.x, &1.dt, &1.a, &1.b, &1.c, @nowhere)

    for {call, fault} <- [
          {&call(&1, :scan, @nowhere), :c},
          {&call(&1, :scan_for_backward, [z: &1.z] ++ @nowhere), :z},
          {step, :initial_state},
          {&call(&1, :backward, @nowhere), :a},
          {&call(&1, :backward, @nowhere), :z},
          {&call(&1, :backward, [dfinal_state: &1.initial_state] ++ @nowhere), :initial_state}
        ] do
      given = if call == step, do: frames, else: inputs
      assert_raise Error, ~r/the cuda backend cannot run: /, fn -> call.(given) end
      assert_raise ArgumentError, fn -> call.(%{given | fault => Tensor.zeros({5})}) end
      assert_raise ArgumentError, ~r/to hold /, fn -> call.(%{given | fault => %{given[fault] | data: <<>>}}) end
    end
  end

  @tag :no_cuda
  test "without a device, CUDA cannot be forced", %{inputs: inputs} do
    refute SelectiveScan.cuda_available?()
    assert SelectiveScan.devices() == []

    for call <- [:scan, :scan_with_state, :scan_for_backward, :backward, :backend_for] do
      error = assert_raise Error, fn -> call(inputs, call, backend: :cuda) end
      assert error.kind == :unavailable
      assert error.message =~ ~r/the cuda backend cannot run: .+; .+/
    end

    {:cpu, reason} = call(inputs, :backend_for, [])
    assert reason =~ "cuda" or reason =~ "CUDA"
  end

  @tag :cuda
  test "CUDA gives what the CPU gives", %{inputs: inputs} do
    on_cpu = call(inputs, :scan_with_state, backend: :cpu)
    on_gpu = call(inputs, :scan_with_state, backend: :cuda)

    for {got, wanted} <- Enum.zip(Tuple.to_list(on_gpu), Tuple.to_list(on_cpu)),
        do: assert(distance(got, wanted) < 2.0e-6)

    on_cpu = call(inputs, :backward, backend: :cpu)
    for {name, got} <- call(inputs, :backward, backend: :cuda), do: assert(distance(got, on_cpu[name]) < 1.0e-5)
  end

  def pass_on(_event, measurements, metadata, test), do: send(test, {:fell_back, measurements, metadata})

  # Has these be the devices of the machine during a test, which is told of fallbacks.
  defp find_instead(devices) do
    found = Devices.all()
    :persistent_term.put({Devices, :all}, devices)
    :persistent_term.erase({Fallback, :warned})
    event = [:exphil_native, :selective_scan, :fallback]
    :telemetry.attach("fallback", event, &__MODULE__.pass_on/4, self())

    on_exit(fn ->
      :telemetry.detach("fallback")
      :persistent_term.put({Devices, :all}, found)
    end)
  end

  test "the work of a group is that of whole registers of channels" do
    work = fn b, c ->
      Cost.work(:forward, %{x: zeros({1, 16, 128}), a: zeros({128, 16}), b: b, c: c}, Options.read!([], :scan))
    end

    of_all = zeros({1, 16, 16})
    assert work.(of_all, of_all) == 128 * 16 * 16
    assert work.(of_all, zeros({1, 16, 8, 16})) == work.(of_all, of_all)
    assert work.(zeros({1, 16, 64, 16}), of_all) == 8 * work.(of_all, of_all)
    assert work.(of_all, zeros({1, 16, 128, 16})) == 16 * work.(of_all, of_all)
    assert work.(zeros({128, 16}), zeros({128, 16})) == work.(of_all, of_all)

    step = %{x: zeros({1, 128}), a: zeros({128, 16, 2}), b: zeros({1, 128, 16, 2}), c: zeros({1, 16, 2})}

    assert Cost.work(:forward, step, Options.read!([], :scan)) ==
             16 * Cost.work(:forward, %{step | b: step.c}, Options.read!([], :scan))
  end

  defp zeros(shape), do: Tensor.zeros(shape)

  test "what a device costs follows from type and shape" do
    x = Tensor.zeros({4, 1000, 512}, :bf16)
    assert Cost.cuda(:forward, x) == 55 + div(3 * byte_size(x.data), 40_000)
    assert Cost.cuda(:backward, %{x | data: <<>>}) == 55 + div(5 * byte_size(x.data), 40_000)
    assert Cost.cuda(:forward, Tensor.zeros({4000, 512}, :bf16)) == Cost.cuda(:forward, x)
  end

  test "the work follows from pass, type, components, method and directions" do
    for {pass, type, components, opts, factor} <- [
          {:forward, :f32, [], [], 1},
          {:forward, :bf16, [], [], 1},
          {:backward, :f32, [], [], 8},
          {:forward, :f64, [], [], 2},
          {:forward, :f32, [2], [], 4},
          {:forward, :f32, [], [bidirectional: true], 2},
          {:forward, :f32, [], [method: :bilinear], 1},
          {:forward, :f32, [], [method: :zoh_exact], 2},
          {:forward, :f32, [], [method: :foh], 2},
          {:forward, :f32, [], [method: :highorder], 2},
          {:forward, :f32, [], [method: :rk4], 2},
          {:forward, :f32, [], [method: :poly], 4},
          {:forward, :f32, [], [method: :poly, bidirectional: false], 2},
          {:backward, :f64, [2], [method: :poly], 8 * 2 * 4 * 4}
        ] do
      states = List.to_tuple([3, 7, 16] ++ components)
      given = %{x: Tensor.zeros({3, 7, 32}, type), a: zeros(List.to_tuple([32, 16] ++ components))}
      given = Map.merge(given, %{b: zeros(states), c: zeros(states)})
      got = Cost.work(pass, given, Options.read!(opts, :scan))
      assert {pass, type, components, opts, got} == {pass, type, components, opts, factor * 3 * 7 * 32 * 16}
    end
  end

  test "the work is that of sixteen channels and as many updates at least, and none where shapes make no sense" do
    for {x, a, wanted} <- [
          {{1, 1, 1}, {1, 1}, 16 * 16},
          {{1, 1}, {1, 1}, 16 * 16},
          {{1, 16, 16}, {16, 1}, 16 * 16},
          {{1, 17, 16}, {16, 1}, 16 * 17},
          {{1, 1, 17}, {17, 1}, 2 * 16 * 16},
          {{3, 1, 1}, {1, 1}, 3 * 16 * 16},
          {{1, 1, 1}, {1}, 0},
          {{1}, {1, 1}, 0},
          {nil, {1, 1}, 0},
          {{1, 1, :many}, {1, 1}, 0}
        ] do
      inputs = %{x: %{zeros({1}) | shape: x}, a: zeros(a), b: zeros({1, 1}), c: zeros({1, 1})}
      assert {x, a, Cost.work(:forward, inputs, Options.read!([], :scan))} == {x, a, wanted}
    end
  end

  test "the time of work, and what is short" do
    work = 2_500 * System.schedulers_online()
    assert for(work <- [work - 1, work, 2 * work], do: Cost.cpu(work)) == [0, 1, 2]
    assert Cost.short?(32_768) and not Cost.short?(32_769)
  end

  test "what is short runs on the scheduler of the caller, what is long on a dirty one" do
    # Backward, as much work is eight times as long.
    for {function, seq, native} <- [
          {:scan, 128, :forward_cpu},
          {:scan, 129, :forward_cpu_dirty},
          {:backward, 16, :backward_cpu},
          {:backward, 17, :backward_cpu_dirty}
        ] do
      inputs = random(batch: 1, seq: seq, dim: 16, state: 16)
      calls = native_calls(fn -> call(inputs, function, backend: :cpu) end)
      ran = for {name, _arguments} <- calls, to_string(name) =~ "_cpu", do: name
      assert {function, seq, ran} == {function, seq, [native]}
    end
  end

  test "devices are looked for once" do
    find_instead(nil)
    calls = native_calls(fn -> for _ <- 1..3, do: SelectiveScan.devices() end)
    assert length(for {:cuda_devices, []} <- calls, do: :looked) == 1
  end

  test "a device that is not there is named, whoever asks for it", %{inputs: inputs} do
    find_instead({:ok, [%{ordinal: 0, name: "the only one"}]})
    System.put_env(@variable, "cuda:3")
    message = "the cuda backend cannot run: there is no device 3; the CUDA devices of this machine are [0]"

    for opts <- [[], [backend: {:cuda, 3}]], function <- [:scan, :backward, :backend_for] do
      assert_raise Error, message, fn -> call(inputs, function, opts) end
    end

    find_instead({:ok, []})
    message = "the cuda backend cannot run: there is no CUDA device; use backend: :auto or :cpu"
    assert_raise Error, message, fn -> call(inputs, :scan, backend: :cuda) end
    assert call(inputs, :backend_for, backend: :auto) == {:cpu, "there is no CUDA device"}
  end

  test "a device that does not work is announced by a call, not by a question", %{inputs: inputs} do
    find_instead({:error, {:failed, "the driver does not start"}})

    assert with_log(fn -> call(inputs, :backend_for, []) end) == {{:cpu, "the driver does not start"}, ""}
    refute_received {:fell_back, _, _}
    assert capture_log(fn -> call(inputs, :scan, []) end) =~ "the driver does not start"
    assert_received {:fell_back, _, %{from: :cuda, to: :cpu, reason: "the driver does not start"}}
  end

  test "a wrong call is announced nowhere, though another backend would take its place", %{inputs: inputs} do
    find_instead({:error, {:failed, "the driver does not start"}})
    for function <- [:scan, :backward], do: catch_error(call(%{inputs | c: inputs.x}, function, []))
    refute_received {:fell_back, _, _}
  end

  if Code.ensure_loaded?(Nx.Pointer) do
    test "tensors of a backend without addresses go through the memory of the host", %{inputs: inputs} do
      find_instead({:ok, [%{ordinal: 99, name: "a device that is not there"}]})
      here = Map.new(inputs, fn {name, tensor} -> {name, Tensor.to_nx(tensor)} end)
      there = Map.new(here, fn {name, tensor} -> {name, ExPhil.Native.BackendWithoutAddresses.of(tensor)} end)
      for function <- [:scan, :backward], do: assert(call(there, function, []) == call(here, function, []))

      assert {:cpu, _} = call(there, :backend_for, [])
    end
  end

  describe "a device that fails" do
    setup do
      # A device that is not there, where a call is worth one: the native library fails to find it, truly.
      find_instead({:ok, [%{ordinal: 99, name: "a device that is not there"}]})
      {:ok, inputs: random(batch: 1, seq: 16, dim: 32, state: 1024 * System.schedulers_online())}
    end

    test "is replaced by the CPU where nobody asked for it, and that is announced", %{inputs: inputs} do
      assert {{:cuda, 99}, reason} = call(inputs, :backend_for, [])
      assert reason =~ "a device that is not there"

      {y, log} = with_log(fn -> call(inputs, :scan, []) end)
      assert y == call(inputs, :scan, backend: :cpu)
      assert log =~ "selective scan: cpu in place of cuda: "
      assert_received {:fell_back, %{system_time: _}, %{from: :cuda, to: :cpu, reason: reason}}
      assert log =~ reason

      assert capture_log(fn -> call(inputs, :scan, []) end) == ""
      assert_received {:fell_back, _, _}

      {_, _, boundary_states} = call(inputs, :scan_for_backward, [])
      assert call(inputs, :backward, boundary_states: boundary_states) == call(inputs, :backward, backend: :cpu)
      for _ <- 1..2, do: assert_received({:fell_back, _, _})
    end

    test "warns once, however many find out at the same time", %{inputs: inputs} do
      log =
        capture_log(fn ->
          1..16 |> Enum.map(fn _ -> Task.async(fn -> call(inputs, :scan, []) end) end) |> Task.await_many(60_000)
        end)

      assert length(String.split(log, "in place of")) == 2
    end

    test "is worth the transfer sooner in a backward pass" do
      inputs = random(batch: 1, seq: 16, dim: 32, state: 96 * System.schedulers_online())
      assert {:cpu, _} = call(inputs, :backend_for, [])
      call(inputs, :scan, [])
      refute_received {:fell_back, _, _}
      assert capture_log(fn -> call(inputs, :backward, []) end) =~ "cpu in place of cuda"
      assert_received {:fell_back, _, _}
    end

    test "is an error where it was asked for", %{inputs: inputs} do
      assert_raise Error, fn -> call(inputs, :scan, backend: {:cuda, 99}) end
      refute_received {:fell_back, _, _}
    end

    test "does not excuse a wrong call", %{inputs: inputs} do
      assert_raise ArgumentError, ~r/expected b to have shape/, fn -> call(%{inputs | b: inputs.x}, :scan, []) end

      assert_raise ArgumentError, ~r/expected dy to have shape/, fn ->
        call(%{inputs | z: inputs.b}, :backward, [])
      end

      refute_received {:fell_back, _, _}
    end
  end

  # What a BEAM of its own says that has scanned once, and can again by `scan.()`.
  defp after_a_scan(opts, script) do
    in_a_beam_of_its_own(Application.app_dir(:exphil_native, "ebin"), """
    alias ExPhil.Native.{Nif, SelectiveScan, Tensor}
    x = Tensor.zeros({1, 2, 3})
    b = Tensor.zeros({1, 2, 4})
    scan = fn -> SelectiveScan.scan(x, x, Tensor.zeros({3, 4}), b, b, #{inspect(opts)}) == x end
    IO.puts("first: \#{scan.()}")
    #{script}
    """)
  end

  test "loaded again while in use or after a purge, the native module goes on with its library" do
    words =
      after_a_scan([], """
      {:error, :on_load_failure} = :code.load_file(Nif)
      IO.puts("loaded again: \#{scan.()}")
      :code.purge(Nif)
      :code.delete(Nif)
      :code.purge(Nif)
      IO.puts("purged: \#{scan.()}")
      """)

    for time <- ["first", "loaded again", "purged"], do: assert(words =~ "#{time}: true")
  end

  test "deleted while its code is in use, as by recompile(), it says what to do, and is loaded again after a purge" do
    words =
      after_a_scan([backend: :cpu], """
      :code.purge(Nif)
      :code.delete(Nif)
      IO.puts("available: \#{SelectiveScan.available?()}")
      try do
        scan.()
      rescue
        error in ExPhil.Native.Error -> IO.puts("\#{error.kind}: \#{error.message}")
      end
      :code.purge(Nif)
      {:module, Nif} = :code.load_file(Nif)
      IO.puts("again: \#{scan.()} \#{SelectiveScan.available?()}")
      """)

    assert words =~ "first: true"
    assert words =~ "available: false"

    assert words =~
             "unavailable: the native library is not loaded: it belongs to deleted code; " <>
               "restart the VM, or :code.purge(ExPhil.Native.Nif) and load it again"

    assert words =~ "again: true true"
  end

  describe "without the native library" do
    @describetag :tmp_dir

    test "everything loads, and every call says why it cannot run", %{tmp_dir: dir} do
      # The modules without their priv/, in a BEAM of their own.
      ebin = Path.join(dir, "exphil_native/ebin")
      File.mkdir_p!(Path.dirname(ebin))
      File.cp_r!(Application.app_dir(:exphil_native, "ebin"), ebin)

      script = """
      alias ExPhil.Native.{SelectiveScan, Tensor}
      IO.puts("available: \#{SelectiveScan.available?()} \#{SelectiveScan.cuda_available?()}")
      x = Tensor.zeros({1, 2, 3})
      a = Tensor.zeros({3, 4})
      b = Tensor.zeros({1, 2, 4})
      for {name, opts} <- [auto: [], cpu: [backend: :cpu], cuda: [backend: :cuda]] do
        try do
          SelectiveScan.scan(x, x, a, b, b, opts)
        rescue
          error in ExPhil.Native.Error -> IO.puts("\#{name} \#{error.kind}: \#{Exception.message(error)}")
        end
      end
      try do
        SelectiveScan.backend_for(x, x, a, b, b)
      rescue
        error in ExPhil.Native.Error -> IO.puts("backend_for \#{error.kind}")
      end
      for {name, call} <- [instructions: &SelectiveScan.instruction_set/0, xla: &SelectiveScan.xla_register/0] do
        try do
          call.()
        rescue
          error in ExPhil.Native.Error -> IO.puts("\#{name} \#{error.kind}")
        end
      end
      %{data: zeros} = Tensor.zeros({2 ** 24 + 1})
      IO.puts("zeros: \#{zeros == :binary.copy(<<0>>, 2 ** 26 + 4)}")
      """

      words = in_a_beam_of_its_own(ebin, script)
      assert words =~ "available: false false"

      for name <- ~w(auto cpu cuda) do
        assert words =~
                 ~r/#{name} unavailable: the native library is not loaded: .*#{Regex.escape(dir)}.*; run `mix compile/
      end

      for name <- ~w(backend_for instructions xla), do: assert(words =~ "#{name} unavailable")
      assert words =~ "zeros: true"
    end

    test "outside of an application, the library is that of the working directory", %{tmp_dir: dir} do
      beams = Path.join(dir, "beams")
      File.cp_r!(Application.app_dir(:exphil_native, "ebin"), beams)
      script = "IO.puts(ExPhil.Native.SelectiveScan.available?())"
      assert in_a_beam_of_its_own(beams, script, [], cd: dir) =~ "false"
      File.ln_s!(Path.expand(Application.app_dir(:exphil_native, "priv")), Path.join(dir, "priv"))
      assert in_a_beam_of_its_own(beams, script, [], cd: dir) =~ "true"
    end

    @tag :nx
    test "what nobody asked for is scanned in Nx, outside of defn and inside, and that is announced", %{
      tmp_dir: dir
    } do
      ebin = Path.join(dir, "exphil_native/ebin")
      File.mkdir_p!(Path.dirname(ebin))
      File.cp_r!(Application.app_dir(:exphil_native, "ebin"), ebin)
      packages = for app <- [:nx, :complex, :telemetry], do: Application.app_dir(app, "ebin")

      script = """
      {:ok, _} = Application.ensure_all_started(:nx)
      alias ExPhil.Native.{SelectiveScan, Tensor}
      x = Tensor.from_list([[[1.0], [2.0], [3.0]]])
      a = Tensor.from_list([[0.0]])
      {:ok, _} = Application.ensure_all_started(:telemetry)
      tell = fn _event, _measurements, metadata, _config -> IO.puts("event: \#{metadata.from} \#{metadata.to}") end
      :telemetry.attach("fallback", [:exphil_native, :selective_scan, :fallback], tell, nil)
      SelectiveScan.backward(x, x, x, a, x, x)
      :telemetry.detach("fallback")
      :telemetry.attach("in defn", [:exphil_native, :selective_scan, :fallback], tell, nil)
      Nx.Defn.jit(fn x -> SelectiveScan.scan(x, x, a, x, x) end).(Tensor.to_nx(x))
      :telemetry.detach("in defn")
      scan = fn opts -> SelectiveScan.scan(x, x, a, x, x, opts) |> Tensor.to_list() |> inspect() end
      IO.puts("auto: \#{scan.([])}")
      IO.puts("nx: \#{scan.([backend: :nx])}")
      {:nx, reason} = SelectiveScan.backend_for(x, x, a, x, x)
      IO.puts("reason: \#{reason}")
      for {name, dy, opts} <- [
            {"gradient", Tensor.from_list([[[1.0]]], :f64), []},
            {"states", x, [boundary_states: Tensor.zeros({2, 1, 5, 1, 1})]},
            {"axes", x, [boundary_states: Tensor.zeros({1, 1})]}
          ] do
        try do
          SelectiveScan.backward(dy, x, x, a, x, x, opts)
        rescue
          error in ArgumentError -> IO.puts("\#{name}: \#{Exception.message(error)}")
        end
      end
      x = Tensor.to_nx(x)
      a = Tensor.to_nx(a)
      sum = fn x -> Nx.sum(SelectiveScan.scan(x, x, a, x, x)) end
      {value, gradient} = Nx.Defn.value_and_grad(x, sum)
      IO.puts("defn: \#{inspect({Nx.to_number(value), Nx.to_flat_list(gradient)})}")
      try do
        Nx.Defn.jit(fn x -> SelectiveScan.scan(x, x, a, x, x, backend: :cpu) end).(x)
      rescue
        error in ExPhil.Native.Error -> IO.puts("forced: \#{error.kind}")
      end
      """

      words = in_a_beam_of_its_own(ebin, script, packages)
      # Of the backward pass, and of the jitted scan.
      assert length(String.split(words, "event: cpu nx")) == 1 + 2
      # y is x times the sum of cubes so far.
      for name <- ~w(auto nx), do: assert(words =~ "#{name}: [[[1.0], [18.0], [108.0]]]")
      assert words =~ "reason: the native library is not loaded"
      assert words =~ "gradient: expected dy to have type f32 where x has type f32, got: f64"
      assert words =~ "states: expected boundary_states to have shape {1, 1, 5, 1, 1}, got: {2, 1, 5, 1, 1}"
      assert words =~ "axes: expected boundary_states to have shape {1, 1, chunks, 1, 1}, got: {1, 1}"
      assert words =~ "defn: {127.0, [19.0, 69.0, 117.0]}"
      assert words =~ "forced: unavailable"
      assert length(String.split(words, "selective scan: nx in place of cpu")) == 2
    end
  end

  defp in_a_beam_of_its_own(ebin, script, more \\ [], opts \\ []) do
    paths = for path <- [ebin | more], do: ["-pa", path]
    {words, 0} = System.cmd("elixir", List.flatten(paths) ++ ["-e", script], [stderr_to_stdout: true] ++ opts)
    words
  end
end
