defmodule ExPhil.Native.SelectiveScan do
  @moduledoc """
  The selective scan of Mamba as one native operation: discretization, recurrence, skip connection and gate, fused.

  For every sequence of the batch, every channel $d$ and every state $n$, frame by frame,

      h = a(Δ, A) * h + g(Δ, A) * B * x
      y = Σ_n C * h

  where Δ is `dt` and $a$, $g$ come from the discretization (`:method`). Then `y + D * x` and, with a gate,
  `y * silu(z)`.

  ## Tensors

  | name | shape | type |
  |---|---|---|
  | `x`, `dt` | `{batch, seq, dim}` | `f32`, `bf16`, `f16` or `f64` |
  | `a` | `{dim, state}`; `{dim, state, 2}` for complex | `f32`; `f64` where `x` is `f64` |
  | `b`, `c` | `{batch, seq, state}`, `{batch, seq, groups, state}` or constant `{dim, state}`; trailing 2 where `a` is complex | that of `x` |
  | result `y` | `{batch, seq, dim}` | that of `x` |
  | result `final_state` | `{batch, dim, state}`, with the trailing 2 of a complex `a` | that of `a` |

  They are `ExPhil.Native.Tensor`s or, where Nx is there, Nx tensors: if `x` is one of Nx, so are the results. A
  complex Nx tensor stands for one with a trailing 2. In a step (`step/7`) the axis of `seq` is missing everywhere.
  `dt` is in the unit of time of `a`: `a` times `dt` has no unit. Numbers that are none (NaN, the infinities) take the
  course that IEEE 754 gives them.

  ## Options

  | option | | default |
  |---|---|---|
  | `:method` | the discretization: `:zoh` (Mamba's), `:zoh_exact`, `:foh`, `:bilinear`, `:poly`, `:highorder`, `:rk4` | `:zoh` |
  | `:coefficients` | `:exact` closed forms, or `:taylor`, the series cut after four terms, for models trained with it | `:exact` |
  | `:bidirectional` | the mean of a scan from each end | true for `:poly`, else false |
  | `:reverse` | scan from the last frame to the first | `false` |
  | `:d` | skip connection, `{dim}`, of the type of `a` | none |
  | `:z` | gate, shape and type of `x` | none |
  | `:dt_bias` | added to `dt`, `{dim}`, of the type of `a` | none |
  | `:dt_softplus` | whether `dt` then passes through `log(1 + e^dt)` | `false` |
  | `:dt_limit` | `{min, max}` of `dt` after that, numbers, `:infinity` or `:neg_infinity` | none |
  | `:initial_state` | the state before the first frame, shape and type of `final_state` | zero |
  | `:seq_idx` | `s32` `{batch, seq}`: the state starts at zero where the index changes, and a frame whose index is negative gives zero and leaves the state | none |
  | `:backend` | `:auto`, `:cpu`, `:cuda`, `{:cuda, ordinal}` or `:nx` | `EXPHIL_SCAN_BACKEND`, else `:auto` |

  The scan itself runs in `f32`, in `f64` where `x` is `f64`. Formulas: Gu and Dao, *Mamba* (2023), for `:zoh`; the
  closed forms of the others are the φ-functions of exponential integrators.

  ## Backends

  `:auto` takes CUDA where there is a device and the call is worth the transfer, else the CPU. What fails on the GPU
  in an `:auto` call is computed on the CPU, and that is announced: by the telemetry event
  `[:exphil_native, :selective_scan, :fallback]` with `%{from: :cuda, to: :cpu, reason: text}`, where `:telemetry` is
  loaded, and by one warning. A backend that was asked for, by option or by the environment variable
  `EXPHIL_SCAN_BACKEND` (`auto`, `cpu`, `cuda`, `cuda:1`, `nx`), is the only one that runs.

  ## Errors

  Every function raises `ArgumentError` where the call is wrong: it names the argument, what was expected and what
  came, before anything is computed. It raises `ExPhil.Native.Error` where the call is right and cannot run here.
  """
  alias ExPhil.Native.{Error, Nif, Tensor}
  alias ExPhil.Native.SelectiveScan.{Backend, Cost, Devices, Fallback, Options}

  @typedoc "An `ExPhil.Native.Tensor` or, where Nx is there, an `Nx.Tensor`."
  @type tensor :: Tensor.t() | struct

  @typedoc "What is known of a CUDA device."
  @type device :: %{
          ordinal: non_neg_integer,
          name: String.t(),
          memory_bytes: pos_integer,
          compute_capability: {pos_integer, non_neg_integer},
          multiprocessors: pos_integer
        }

  @doc """
  Scans whole sequences: `y`. Tensors, options and errors are those of the module.

  ## Examples

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = Tensor.from_list([[[1.0], [1.0], [1.0]]])
      iex> dt = Tensor.from_list([[[1.0], [1.0], [1.0]]])
      iex> a = Tensor.from_list([[0.0]])
      iex> b = c = Tensor.from_list([[[1.0], [1.0], [1.0]]])
      iex> SelectiveScan.scan(x, dt, a, b, c)
      #ExPhil.Native.Tensor<f32[1][3][1] [[[1.0], [2.0], [3.0]]]>
      iex> SelectiveScan.scan(x, dt, a, b, c, d: Tensor.from_list([10.0]), reverse: true)
      #ExPhil.Native.Tensor<f32[1][3][1] [[[13.0], [12.0], [11.0]]]>

  ## Error cases

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.scan(x, dt, Tensor.zeros({2, 1}), b, c)
      ** (ArgumentError) expected a to have shape {1, state}, or {1, state, 2} for complex, got: {2, 1}

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.scan(x, dt, Tensor.zeros({1, 1}), b, c, reverse: :yes)
      ** (ArgumentError) expected reverse to be a boolean, got: :yes
  """
  @spec scan(tensor, tensor, tensor, tensor, tensor, keyword) :: tensor
  def scan(x, dt, a, b, c, opts \\ []) do
    {y, nil} = forward(:scan, {x, dt, a, b, c}, Options.read!(opts, :scan), false)
    y
  end

  @doc """
  Scans whole sequences: `{y, final_state}`. The state goes into the scan of what follows as `:initial_state`, or
  into `step/7`.

  ## Examples

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.from_list([[[1.0], [1.0]]])
      iex> a = Tensor.from_list([[0.0]])
      iex> {_y, state} = SelectiveScan.scan_with_state(x, dt, a, b, c)
      iex> state
      #ExPhil.Native.Tensor<f32[1][1][1] [[[2.0]]]>
      iex> SelectiveScan.scan(x, dt, a, b, c, initial_state: state)
      #ExPhil.Native.Tensor<f32[1][2][1] [[[3.0], [4.0]]]>
  """
  @spec scan_with_state(tensor, tensor, tensor, tensor, tensor, keyword) :: {tensor, tensor}
  def scan_with_state(x, dt, a, b, c, opts \\ []) do
    forward(:scan, {x, dt, a, b, c}, Options.read!(opts, :scan), true)
  end

  @doc """
  Goes one frame on: `{y, state}`. The shapes are those of the module without `seq`: `x`, `dt` and `:z`
  `{batch, dim}`, `b` and `c` `{batch, state}`, `{batch, groups, state}` or constant `{dim, state}`. (Where batch and
  dim are the same, a `b` of rank 2 is taken for `{batch, state}`.) `state` is `{batch, dim, state}`.

  A step is causal: `:reverse`, `:seq_idx` and `bidirectional: true` are refused, and `method: :poly` wants
  `bidirectional: false` beside it.

  ## Examples

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.from_list([[1.0]])
      iex> a = Tensor.from_list([[0.0]])
      iex> {_y, state} = SelectiveScan.step(Tensor.zeros({1, 1, 1}), x, dt, a, b, c)
      iex> {y, _state} = SelectiveScan.step(state, x, dt, a, b, c)
      iex> y
      #ExPhil.Native.Tensor<f32[1][1] [[2.0]]>
  """
  @spec step(tensor, tensor, tensor, tensor, tensor, tensor, keyword) :: {tensor, tensor}
  def step(state, x, dt, a, b, c, opts \\ []) do
    options = Options.read!(opts, :step)
    forward(:step, {x, dt, a, b, c}, %{options | initial_state: Tensor.cast!(state, :state)}, true)
  end

  @doc """
  Whether the native library is loaded. Where it is not, every call says why.
  """
  @spec available?() :: boolean
  def available?, do: Nif.loaded() == :ok

  @doc """
  Whether the native library is loaded and sees a CUDA device.
  """
  @spec cuda_available?() :: boolean
  def cuda_available?, do: devices() != []

  @doc """
  The CUDA devices of this machine, none where there is no driver. They are looked for once.
  """
  @spec devices() :: [device]
  def devices do
    case Devices.all() do
      {:ok, devices} -> devices
      {:error, _} -> []
    end
  end

  @doc """
  The vector instructions that the CPU backend uses on this machine: `"avx512"`, `"avx2"`, `"neon"`, or `"plain"` for
  none.
  """
  @spec instruction_set() :: String.t()
  def instruction_set do
    case Nif.cpu_instruction_set() do
      {:ok, name} -> name
      {:error, reason} -> Error.raise!(reason)
    end
  end

  @doc """
  Makes the scan known to EXLA as an XLA custom call: `:registered`, or `:no_xla` where no XLA is loaded in this BEAM.

  The library does so itself when it loads; where EXLA comes later, call this before a `defn` is compiled. To call it
  again does nothing. `docs/xla.md` has the rest.

  ## Examples

      iex> ExPhil.Native.SelectiveScan.xla_register() in [:registered, :no_xla]
      true
  """
  @spec xla_register() :: :registered | :no_xla
  def xla_register do
    case Nif.xla_register() do
      {:ok, outcome} -> outcome
      {:error, reason} -> Error.raise!(reason)
    end
  end

  @doc """
  Which backend a call with these arguments takes, and why: `{:cpu | {:cuda, ordinal}, reason}`. Nothing is computed.
  Raises where the backend that was asked for cannot run.

  ## Examples

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.backend_for(x, dt, Tensor.zeros({1, 1}), b, c, backend: :cpu)
      {:cpu, "asked for by backend: :cpu"}
  """
  @spec backend_for(tensor, tensor, tensor, tensor, tensor, keyword) :: {Backend.t(), String.t()}
  def backend_for(x, dt, a, b, c, opts \\ []) do
    {x, _dt, a, _b, _c} = cast!({x, dt, a, b, c})
    Backend.explain(Options.read!(opts, :scan), x, a)
  end

  defp forward(form, given, options, with_state?) do
    {x, _dt, a, _b, _c} = tensors = cast!(given)

    case Backend.choose(options, x, a) do
      {:cpu, _} -> cpu(form, tensors, options, with_state?)
      {{:cuda, ordinal}, may_fall_back} -> cuda(ordinal, may_fall_back, form, tensors, options, with_state?)
    end
    |> results(x, a, given)
  end

  defp cast!({x, dt, a, b, c}) do
    {Tensor.cast!(x, :x), Tensor.cast!(dt, :dt), Tensor.cast!(a, :a), Tensor.cast!(b, :b), Tensor.cast!(c, :c)}
  end

  defp cpu(form, {x, _, a, _, _} = tensors, options, with_state?) do
    if Cost.short?(Cost.work(x, a, options)) do
      Nif.forward_cpu(form, tensors, options, with_state?)
    else
      Nif.forward_cpu_dirty(form, tensors, options, with_state?)
    end
  end

  defp cuda(ordinal, may_fall_back, form, tensors, options, with_state?) do
    case Nif.forward_cuda(ordinal, form, tensors, options, with_state?) do
      {:error, {kind, reason}} when may_fall_back == :chosen and kind != :invalid_argument ->
        Fallback.announce(:cuda, :cpu, reason)
        cpu(form, tensors, options, with_state?)

      answer ->
        answer
    end
  end

  defp results({:error, reason}, _x, _a, _given), do: Error.raise!(reason)

  defp results({:ok, y, state}, x, a, {given_x, _, given_a, _, _}) do
    {like(%{x | data: y}, given_x, given_x), state && like(state_tensor(state, x, a), given_x, given_a)}
  end

  # {batch, dim, state} and its type follow from {dim, state} and the type of a.
  defp state_tensor(state, x, a) do
    %Tensor{type: a.type, shape: Tuple.insert_at(a.shape, 0, elem(x.shape, 0)), data: state}
  end

  # A result is one of Nx where x was, and complex where its model was.
  if Code.ensure_loaded?(Nx) do
    defp like(result, %Nx.Tensor{}, %{type: {class, _}}), do: Tensor.to_nx(result, complex: class == :c)
  end

  defp like(result, _x, _model), do: result
end
