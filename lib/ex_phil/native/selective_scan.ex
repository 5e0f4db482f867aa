defmodule ExPhil.Native.SelectiveScan do
  @moduledoc """
  The selective scan of Mamba as one native operation: discretization, recurrence, skip connection and gate, fused;
  with its gradients (`backward/7`) and frame by frame (`step/7`).

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

  They are `ExPhil.Native.Tensor`s or, where Nx is there, Nx tensors: if `x` is one of Nx, or any other an expression of a
  `defn` or vectorized, so are the results. A complex Nx tensor stands for one with a trailing 2; with parts of 16 bits
  there is none, and the trailing 2 is given. The axes of `y` have the names of those of `x`, and gradients those of what they
  belong to. In a step (`step/7`) the axis of `seq` is missing everywhere. No axis may be empty.
  `dt` is in the unit of time of `a`: `a` times `dt` has no unit. Methods with gains of their own (`:zoh_exact`, `:foh`, `:poly`,
  `:highorder`) make powers of `dt`, which `f32` holds for `dt` of 1.0e-9 to 1.0e9. Numbers that are none (NaN, the infinities)
  take the course that IEEE 754 gives them.

  ## Options

  Where there is no default, and for `:bidirectional`, `:backend` and `:algorithm`, `nil` is as good as leaving the option
  out. An unknown option is an error.

    * `:method` - the discretization: `:zoh`, `:zoh_exact`, `:foh`, `:bilinear`, `:poly`, `:highorder` or `:rk4`; next
      section. Default `:zoh`. Error: any other term; no method stands in for another.

    * `:coefficients` - `:exact`, the closed forms, or `:taylor`, the gains cut after four terms of their series, for
      models that were trained with them. Default `:exact`. Error: `:taylor` for a method other than `:foh`, `:poly`
      and `:highorder`, which have no such series. The cut series are those of the VisionMamba implementation; they
      are 6% (`:foh`) to 23% off at |AΔ| = 2 and change sign soon after (`mix selective_scan.verify` prints where).

    * `:bidirectional` - a boolean: the mean of a scan from each end, in one call. `:initial_state` goes into the scan from
      the beginning (with `:reverse`, from the end), whose final state is returned; the other begins at zero. Default: true for `:poly`, which is defined so in VisionMamba, else false. Error: no boolean;
      true in a step.

    * `:reverse` - a boolean: scan from the last frame to the first, without turning tensors round; the final state is
      then the one after the first frame. Default `false`. Error: no boolean; true in a step.

    * `:d` - the skip connection, `{dim}`, type of `a`: `d * x` is added to `y`. Default: none. Error: another shape or
      type. As `D` in mamba_ssm.

    * `:z` - the gate, shape and type of `x`: `y` is multiplied by `silu(z)`, after the skip connection. Default: none.
      Error: another shape or type. As `z` in mamba_ssm.

    * `:dt_bias` - `{dim}`, type of `a`: added to `dt`, first of all. Default: none. Error: another shape or type. As
      `delta_bias` in mamba_ssm.

    * `:dt_softplus` - a boolean: whether `dt` then passes through `log(1 + e^dt)`, the identity above 20 as in mamba_ssm.
      Default `false`. Error: no boolean.

    * `:dt_limit` - `{min, max}`, numbers, `:infinity` or `:neg_infinity`, that `dt` is then brought between, as in
      Mamba-2. Where the limit holds, no gradient passes. Default: none. Error: anything else, `min` above `max`, a `min`
      of `:infinity` or a `max` of `:neg_infinity`.

    * `:initial_state` - the state before the first frame, `{batch, dim, state}`, `{batch, dim, state, 2}` where `a` is
      complex, type of `a`. Default: zero. Error: another shape or type; given to a step, whose state is an argument.

    * `:seq_idx` - `s32` `{batch, seq}`: sequences of different lengths share a row. The state starts at zero where the
      index changes. A frame whose index is negative gives zero, leaves the state, and is passed over when indices are
      compared: 0, -1, 0 is one sequence. The initial state belongs to the first frame that counts. Default: none.
      Error: another shape or type; given to a step. As `seq_idx` in Mamba-2.

    * `:backend` - `:auto`, `:cpu`, `:cuda`, `{:cuda, ordinal}` or `:nx`; see below. Default: what the environment
      variable `EXPHIL_SCAN_BACKEND` says, else `:auto`. Error: any other term, or a backend that cannot run here.

    * `:algorithm` - how the Nx backend scans: `:blelloch`, `:hillis_steele`, `:cumsum` or `:sequential`; see below.
      Default `:blelloch`. Error: any other term. The native backends have one algorithm each, and do not ask.

  And for `backward/7` alone:

    * `:dfinal_state` - the gradient of the final state, shape and type of it. Default: zero. Error: another shape or
      type.

    * `:boundary_states` - what `scan_for_backward/6` returned for the same inputs and options. Default: `nil`, they are
      computed again. Error: another shape or type than the call would hand over.

  ## Methods

  With $z = AΔ$, φ1 = (e^z - 1)/z, φ2 = (φ1 - 1)/z, φ3 = (φ2 - 1/2)/z, and real or complex $A$:

  | `:method` | decay a | gain g | from |
  |---|---|---|---|
  | `:zoh` | e^z | Δ | Gu and Dao, *Mamba* (2023): zero-order hold with B̄ simplified to ΔB, as mamba_ssm computes it |
  | `:zoh_exact` | e^z | Δφ1 | the same without the simplification (equation 4 there) |
  | `:foh` | e^z | Δ²φ2 | first-order hold |
  | `:bilinear` | (1 + z/2)/(1 - z/2) | Δ/(1 - z/2) | Tustin's transform, as in Gu, Goel and Ré, *S4* (2021) |
  | `:poly` | e^z | Δφ1 + ½Δ²φ2 | VisionMamba's polynomial interpolation |
  | `:highorder` | e^z | Δφ1 + Δ²φ2 + ½Δ³φ3 | VisionMamba's higher-order hold |
  | `:rk4` | e^z | Δ(1 + z/2 + z²/6 + z³/24) | the classical Runge-Kutta method's gain |

  The φ-functions are those of Hochbruck and Ostermann, *Exponential integrators* (2010). Where $A$ is complex,
  $y = 2 Re Σ_n C h$, as in mamba_ssm.

  The scan itself runs in `f32`, in `f64` where `x` is `f64`. The same call gives the same bits on the same device,
  forward and backward, however many threads there are. Outputs in `f32` are at most 2e-6 of their norm away from
  exact ones, gradients 1e-5; more where a row is so long, and decays so little or grows, that roundings of its decays
  add up. 100 frames in which states grow by up to a tenth each come to 3e-6 on the CPU. Where Δ varies, 20,000 frames
  of Re $z$ from -5e-5 to -5e-4 come to less than 1e-5 on the CPU. On CUDA, where decays near 1 are rounded one way in
  more frames than the other, they come to 1e-5 for real $A$, 5e-5 for complex $A$, and 1e-4 for `:bilinear` of real
  $A$.

  ## Backends

  `:auto` takes CUDA where there is a device and the call is worth the transfer, else the CPU. What fails on the GPU
  in an `:auto` call is computed on the CPU, and what should run in the native library is computed in Nx where the
  library could not be loaded and Nx is there. Both are announced: by the telemetry event
  `[:exphil_native, :selective_scan, :fallback]` with `%{from: :cuda, to: :cpu, reason: text}`, or from `:cpu` to `:nx`,
  where `:telemetry` is loaded, and by one warning. A backend that was asked for, by option or by the environment variable
  `EXPHIL_SCAN_BACKEND` (`auto`, `cpu`, `cuda`, `cuda:1`, `nx`), is the only one that runs.

  An eager call on Nx tensors that all lie in the memory of one CUDA device, where their backend says at which address
  (`Nx.to_pointer/2`: EXLA), runs there, and its results lie there too; nothing is copied. The call waits for
  what was enqueued on the device's primary context before, and for its own end. The results' memory belongs to the
  backend. Where another backend is asked for, or a tensor lies elsewhere, the call goes through the memory of the host.
  Seen to work, and to give the bits of a call from the host, on an H200 with a backend of the tests' own in place of
  EXLA's, which was read and not run.

  `:nx` is the same operation written in Nx, for whatever compiler and backend Nx has. It keeps all states of all
  frames, {batch, seq, dim, state} three times over, where the native backends never do. Nx's own backend,
  `Nx.BinaryBackend`, ends the BEAM where there is no memory for them, and raises `ArithmeticError` where the real part of an
  exponent, as AΔ, is above 709, which Erlang has no exponential of. For L frames:

  | `:algorithm` | multiplications a state | depth | memory beside that |
  |---|---|---|---|
  | `:blelloch` | 3L, work-efficient | 2 log L | twice as much, halved from level to level |
  | `:hillis_steele` | 2L log L | log L | twice as much |
  | `:cumsum` | 48L | 4 + 2 log(L/16) | sixteen times as much |
  | `:sequential` | L | L, a `while` | none |

  Its gradient is a scan from the other end by the same algorithm, and has gradients itself.

  ## In defn

  `scan/6`, `scan_with_state/6`, `step/7` and `backward/7` can be called in `defn`, with every option. Types and shapes
  are checked when the function is traced. `grad` and `value_and_grad` are those of the native backward pass, for every
  tensor that was given, the initial state included, and through `y` and the final state. Vectorized tensors are one
  scan: their axes join the batch or, where parameters have them too, the channels. Nx's own gradient of a `while`
  (0.13.1) is wrong, and says nothing, be it a step or anything else that is in it: train with a scan, or unroll the
  loop.

  In the expression, the scan is an `Nx.block`. Nx's evaluator runs it in the native library on the host. EXLA runs it
  as an XLA custom call where its handlers are there, and otherwise calls the host. The gradient of the native scan has
  no gradient; asking for one raises an error that says so. With `backend: :nx`, and where there is no native library,
  the expression is the scan written in Nx. The backend is chosen when the function is traced, of the native ones when
  it runs. Nx before 0.12 has no blocks, and the expression is the call of the host alone; Nx before 0.11 cannot call
  the host either, and the expression is the scan written in Nx, or an error where a native backend is asked for.

  ## Errors

  Every function raises `ArgumentError` where the call is wrong: it names the argument, what was expected and what
  came, before anything is computed. It raises `ExPhil.Native.Error` where the call is right and cannot run here.
  """
  alias ExPhil.Native.{Error, Nif, Tensor}
  alias ExPhil.Native.SelectiveScan.{Call, Devices, Options, Warmup}
  import ExPhil.Native.SelectiveScan.Callable

  @typedoc "An `ExPhil.Native.Tensor` or, where Nx is there, an `Nx.Tensor`."
  @type tensor :: Tensor.t() | struct

  @typedoc "What runs a call; CUDA devices are numbered."
  @type backend :: :cpu | :nx | {:cuda, non_neg_integer}

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
  @doc type: :scan
  @spec scan(tensor, tensor, tensor, tensor, tensor, keyword) :: tensor
  defcallable scan(x, dt, a, b, c, opts \\ []) do
    {y, nil, nil} = Call.forward(:scan, {x, dt, a, b, c}, Options.read!(opts, :scan), :y)
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
  @doc type: :scan
  @spec scan_with_state(tensor, tensor, tensor, tensor, tensor, keyword) :: {tensor, tensor}
  defcallable scan_with_state(x, dt, a, b, c, opts \\ []) do
    {y, final_state, nil} = Call.forward(:scan, {x, dt, a, b, c}, Options.read!(opts, :scan), :final_state)
    {y, final_state}
  end

  @doc """
  Scans whole sequences as a part of training: `{y, final_state, boundary_states}`. With `boundary_states`, `backward/7`
  need not compute the states again that it starts from.

  `boundary_states` is a tensor of the type of `a` and of shape `{directions, batch, chunks, dim, state}`, with the
  trailing 2 of a complex `a`: the states before every chunk of frames, for each direction that is scanned. In long
  sequences it takes at most about a twenty-fourth of `x`, `dt` and `dy`, of up to 128 states: 64 where `x` has 16
  bits, half as many where they are complex, and half where both directions are scanned. With more states it takes more,
  in proportion.
  It is good for `backward/7` over the same inputs and options, and for nothing else. On a CUDA device it is `nil`: the
  device computes these states again in less time than they would take over the bus, and `backward/7` does so where it is
  given `nil`. It is `nil`, too, by `backend: :nx`, in `defn`, and of tensors that lie on a device. What a `defn` returns
  cannot hold a `nil`: take it off there, `{y, state, _} = scan_for_backward(x, dt, a, b, c)`.

  ## Examples

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.from_list([[[1.0], [1.0]]])
      iex> a = Tensor.from_list([[0.0]])
      iex> {_y, _state, boundary_states} = SelectiveScan.scan_for_backward(x, dt, a, b, c, backend: :cpu)
      iex> gradients =
      ...>   SelectiveScan.backward(Tensor.from_list([[[1.0], [1.0]]]), x, dt, a, b, c,
      ...>     boundary_states: boundary_states
      ...>   )
      iex> gradients.x
      #ExPhil.Native.Tensor<f32[1][2][1] [[[2.0], [1.0]]]>
  """
  @doc type: :scan
  @spec scan_for_backward(tensor, tensor, tensor, tensor, tensor, keyword) :: {tensor, tensor, tensor | nil}
  defcallable scan_for_backward(x, dt, a, b, c, opts \\ []) do
    Call.forward(:scan, {x, dt, a, b, c}, Options.read!(opts, :scan), :boundary_states)
  end

  @doc """
  The gradients of `sum(y * dy) + sum(final_state * dfinal_state)`, where `dy` is the gradient of the loss with respect
  to `y`, of its shape and type: a map with `:x`, `:dt`, `:a`, `:b` and `:c`, and with `:d`, `:z`, `:dt_bias` and
  `:initial_state` where they are given. Each gradient has the shape and the type of what it belongs to; that of `dt` is
  with respect to `dt` as it was given, before bias, softplus and limit. Complex gradients are dL/dRe + i dL/dIm, as in
  PyTorch.

  Options are those of the scan, with `:dfinal_state` and `:boundary_states` beside them. Every method, layout and type
  of the scan has gradients. States are computed again, chunk by chunk; no tensor of {batch, seq, dim, state} is ever
  made, and the same call gives the same bits.

  ## Examples

  With $A = 0$ and ones elsewhere, $y_1 = x_1$ and $y_2 = x_1 + x_2$, so that $x_1$ counts twice:

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = dy = Tensor.from_list([[[1.0], [1.0]]])
      iex> gradients = SelectiveScan.backward(dy, x, dt, Tensor.from_list([[0.0]]), b, c)
      iex> Map.keys(gradients)
      [:a, :b, :c, :dt, :x]
      iex> gradients.x
      #ExPhil.Native.Tensor<f32[1][2][1] [[[2.0], [1.0]]]>
      iex> gradients.c
      #ExPhil.Native.Tensor<f32[1][2][1] [[[1.0], [2.0]]]>
      iex> gradients.a
      #ExPhil.Native.Tensor<f32[1][1] [[1.0]]>

  What flows in from the state after the last frame, and out to the one before the first:

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.from_list([[[1.0], [1.0]]])
      iex> state = Tensor.from_list([[[5.0]]])
      iex> gradients =
      ...>   SelectiveScan.backward(Tensor.zeros({1, 2, 1}), x, dt, Tensor.from_list([[0.0]]), b, c,
      ...>     initial_state: state,
      ...>     dfinal_state: Tensor.from_list([[[3.0]]])
      ...>   )
      iex> gradients.initial_state
      #ExPhil.Native.Tensor<f32[1][1][1] [[[3.0]]]>

  ## Error cases

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.backward(Tensor.zeros({1, 2, 1}), x, dt, Tensor.zeros({1, 1}), b, c)
      ** (ArgumentError) expected dy to have shape {1, 3, 1}, got: {1, 2, 1}

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = dy = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.backward(dy, x, dt, Tensor.zeros({1, 1}), b, c, dfinal_state: Tensor.zeros({1, 1}))
      ** (ArgumentError) expected dfinal_state to have shape {1, 1, 1}, got: {1, 1}
  """
  @doc type: :scan
  @spec backward(tensor, tensor, tensor, tensor, tensor, tensor, keyword) :: %{atom => tensor}
  defcallable backward(dy, x, dt, a, b, c, opts \\ []) do
    Call.backward(dy, {x, dt, a, b, c}, Options.read!(opts, :backward))
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
  @doc type: :scan
  @spec step(tensor, tensor, tensor, tensor, tensor, tensor, keyword) :: {tensor, tensor}
  defcallable step(state, x, dt, a, b, c, opts \\ []) do
    options = %{Options.read!(opts, :step) | initial_state: Tensor.given!(state, :state)}
    {y, state, nil} = Call.forward(:step, {x, dt, a, b, c}, options, :final_state)
    {y, state}
  end

  @doc """
  Whether the native library is loaded. Where it is not, `:auto` scans in Nx, if that is there, and every other call says
  why.
  """
  @doc type: :machine
  @spec available?() :: boolean
  def available?, do: Nif.loaded() == :ok

  @doc """
  Whether the native library is loaded and sees a CUDA device.
  """
  @doc type: :machine
  @spec cuda_available?() :: boolean
  def cuda_available?, do: devices() != []

  @doc """
  The CUDA devices of this machine, none where there is no driver. They are looked for once.
  """
  @doc type: :machine
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
  @doc type: :machine
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
  @doc type: :machine
  @spec xla_register() :: :registered | :no_xla
  def xla_register do
    case Nif.xla_register() do
      {:ok, outcome} -> outcome
      {:error, reason} -> Error.raise!(reason)
    end
  end

  @doc """
  Which backend a scan of these arguments takes, and why: `{:cpu | :nx | {:cuda, ordinal}, reason}`; a step, with the options
  of a step, where `x` is `{batch, dim}`. Nothing is computed, and no numbers are fetched. The backward pass, which is longer,
  is worth a transfer sooner.

  Raises where the call is wrong, where a tensor is an expression in `defn` or vectorized, and where the backend that was
  asked for has no device or no library here. Whether a device can have its kernels is seen when it scans.

  ## Examples

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.backend_for(x, dt, Tensor.zeros({1, 1}), b, c, backend: :cpu)
      {:cpu, "asked for by backend: :cpu"}

  ## Error cases

      iex> alias ExPhil.Native.{SelectiveScan, Tensor}
      iex> x = dt = b = c = Tensor.zeros({1, 3, 1})
      iex> SelectiveScan.backend_for(x, dt, Tensor.zeros({7, 1}), b, c)
      ** (ArgumentError) expected a to have shape {1, state}, or {1, state, 2} for complex, got: {7, 1}
  """
  @doc type: :machine
  @spec backend_for(tensor, tensor, tensor, tensor, tensor, keyword) :: {backend, String.t()}
  def backend_for(x, dt, a, b, c, opts \\ []) do
    Call.backend({x, dt, a, b, c}, opts)
  end

  @doc """
  Makes ready for calls to come, so that the first of them takes no longer than the others: `:ok`.

  It makes a few such calls with zeros, and raises `ExPhil.Native.Error` where there is no memory for them. What they
  leave behind is the device's context, the kernels, compiled and loaded, the memory that calls of this size share, and
  the threads. Call it once for each kind of call, before the game starts.

  ## Options

    * `:x`, `:a` - the shapes of the calls to come, `{batch, seq, dim}` and `{dim, state}`, or `{dim, state, 2}` for
      complex. Needed. Error: anything else.
    * `:b`, `:c` - their shapes. Default: `{batch, seq, state}`, with the trailing 2 of a complex `a`. Error: shapes that
      the scan refuses.
    * `:type` - the type of `x`. Default `:f32`. Error: one that the scan refuses.
    * `:d`, `:z`, `:dt_bias`, `:initial_state`, `:seq_idx` - `true`, or their shapes, for those that will be given.
      Default: none. Error: shapes that the scan refuses.
    * `:for` - a list of `:scan`, `:step` and `:backward`: what will be called. A step is one frame of these shapes,
      and refuses what it has no use for (`:seq_idx`, `:reverse`, `:bidirectional`). Default `[:scan]`. Error: anything else.
    * all that are no tensors of the options of the module: `:method`, `:backend`, `:dt_softplus` and so on, with their
      defaults and errors.

  ## Kernels

  What a kernel of the CUDA backend does is known when it is compiled, so every kind of call has its own: they differ
  with the method, the type, the options that are used, and the layout that suits the sizes and the device. The first
  call of a kind has NVRTC compile them in about a second. They are kept on disk, in `$XDG_CACHE_HOME/exphil_native` or
  `~/.cache/exphil_native`, from where the first call of the next BEAM has them in milliseconds.

  Some were packed with the library (`make ptx`): plain `:zoh` in `:f32` and `:bf16`, forward, backward and frame by
  frame, bare or with `:d`, `:z`, `:dt_bias` and `:dt_softplus`, in the sizes of common models. They serve where NVRTC is
  not there; on devices of compute capability 9.0 and newer with a driver of CUDA 13 they go before it, because the
  driver, which keeps what it has made on disk itself, translates them in half the time. `EXPHIL_NVRTC=none` leaves NVRTC
  alone, `EXPHIL_KERNELS=/file` names other packed kernels, and a file that is not there none. Both, and `XDG_CACHE_HOME`, are read from
  the environment that the BEAM was started with, not from what `System.put_env/2` makes of it.

  ## Examples

      iex> alias ExPhil.Native.SelectiveScan
      iex> SelectiveScan.warmup(x: {1, 60, 64}, a: {64, 16}, d: true, z: true, dt_softplus: true, for: [:scan, :step])
      :ok

  ## Error cases

      iex> ExPhil.Native.SelectiveScan.warmup(x: {1, 60, 64})
      ** (ArgumentError) expected a to be {dim, state} or {dim, state, 2}, got: nil

      iex> ExPhil.Native.SelectiveScan.warmup(x: {1, 60, 64}, a: {64, 16}, for: [:train])
      ** (ArgumentError) expected for to be a list of :scan, :step, :backward, got: [:train]
  """
  @doc type: :machine
  @spec warmup(keyword) :: :ok
  def warmup(opts), do: Warmup.run(opts)
end
