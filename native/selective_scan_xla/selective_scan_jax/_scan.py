"""The operation as users call it."""

import functools
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from . import _library
from ._call import Call, Function, batched_call, kind_of, scratch_of, varying_together

Array = jax.Array
ArrayLike = jax.typing.ArrayLike

Method = typing.Literal["zoh", "zoh_exact", "foh", "bilinear", "poly", "highorder", "rk4"]
Coefficients = typing.Literal["exact", "taylor"]

_REQUIRED = ("x", "dt", "a", "b", "c")
_COMPLEX_INPUTS = ("a", "b", "c", "initial_state")


@typing.overload
def selective_scan(
    x: ArrayLike, dt: ArrayLike, a: ArrayLike, b: ArrayLike, c: ArrayLike, *,
    return_final_state: typing.Literal[False] = False, **options: typing.Any,
) -> Array: ...
@typing.overload
def selective_scan(
    x: ArrayLike, dt: ArrayLike, a: ArrayLike, b: ArrayLike, c: ArrayLike, *,
    return_final_state: typing.Literal[True], **options: typing.Any,
) -> tuple[Array, Array]: ...


def selective_scan(
    x: ArrayLike,
    dt: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    *,
    method: Method = "zoh",
    coefficients: Coefficients = "exact",
    bidirectional: bool | None = None,
    reverse: bool = False,
    d: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] | None = None,
    initial_state: ArrayLike | None = None,
    seq_idx: ArrayLike | None = None,
    return_final_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Scans: for every sequence, channel and state, frame by frame, h = a(Δ, A) h + g(Δ, A) B x and y = Σ C h, then
    y + D x and, with a gate, y silu(z).

    Args:
        x: the input, (batch, seq, dim); float32, bfloat16, float16 or float64.
        dt: the step sizes Δ, like x, before bias, softplus and limit.
        a: the diagonal of A, (dim, state), real or complex; float32 (complex64), or float64 (complex128) where x is.
            With a complex a, b and c are complex too, and y is the real part over both of each pair of conjugate
            states: 2 Re Σ C h.
        b: B, (batch, seq, state), (batch, seq, groups, state) or constant (dim, state), of the type of x. With a complex a, and
            x of 16 bits, complex64, whose parts are rounded to the type of x.
        c: C, like b.
        method: the discretization. "zoh" is Mamba's.
        coefficients: closed forms, or the series cut after four terms.
        bidirectional: the mean of a scan from each end; by default for method "poly" alone.
        reverse: whether to scan from the last frame to the first.
        d: the skip connection D, (dim,), of the type of a's components.
        z: the gate, like x.
        dt_bias: added to dt, (dim,), of the type of a's components.
        dt_softplus: whether dt then passes through softplus.
        dt_limit: least and greatest dt after that.
        initial_state: the state before the first frame, (batch, dim, state), of the type of a.
        seq_idx: which packed sequence a frame belongs to, int32 (batch, seq): the state starts at zero where it
            changes, and a frame whose index is negative gives zero and leaves the state.
        return_final_state: whether to return (y, final_state).

    Returns:
        y, like x; with `return_final_state` also the state after the last frame, (batch, dim, state), of the type of a.

    Raises:
        ValueError: where a shape, a type or an option is wrong, with what was expected and what came.
    """
    given = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "z": z, "dt_bias": dt_bias}
    given |= {"initial_state": initial_state, "seq_idx": seq_idx}
    arrays = {name: _array(name, v) for name, v in given.items() if v is not None or name in _REQUIRED}
    return_final_state = _flag("return_final_state", return_final_state)
    if arrays["a"].ndim != 2:
        raise ValueError(f"expected a to have shape (dim, state), got: {arrays['a'].shape}")
    is_complex = jnp.iscomplexobj(arrays["a"])
    constant = tuple(name for name in ("b", "c") if arrays[name].ndim == 2)
    call = Call(
        target=_library.FORWARD,
        operands=tuple(arrays),
        results=(),
        complex=is_complex,
        constant=constant,
        method=_one_of("method", Method, method),
        coefficients=_one_of("coefficients", Coefficients, coefficients),
        bidirectional=(method == "poly") if bidirectional is None else _flag("bidirectional", bidirectional),
        reverse=_flag("reverse", reverse),
        dt_softplus=_flag("dt_softplus", dt_softplus),
        dt_limit=None if dt_limit is None else _limit(dt_limit),
    )
    if is_complex:
        for name in filter(arrays.__contains__, _COMPLEX_INPUTS):
            arrays[name] = _components(name, arrays[name], arrays["x"].dtype)
    scratch_of(call, arrays)
    for name in {"b", "c"}.difference(constant):
        if arrays[name].ndim == 3 + is_complex:
            arrays[name] = jnp.expand_dims(arrays[name], 2)

    outputs = ("y", "final_state") if return_final_state else ("y",)
    results = _differentiable(call.forward(outputs))(*varying_together(list(arrays.values())))
    if not return_final_state:
        return results[0]
    y, state = results
    return y, (jax.lax.complex(state[..., 0], state[..., 1]) if is_complex else state)


def _array(name: str, value: object) -> Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"expected {name} to be an array, got: {value!r}") from None


def _one_of(name: str, choices: object, value: object) -> str:
    known = typing.get_args(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"expected {name} to be one of {', '.join(known)}, got: {value!r}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"expected {name} to be a bool, got: {value!r}")
    return bool(value)


def _limit(dt_limit: object) -> tuple[float, float]:
    try:
        least, greatest = (float(value) for value in dt_limit if not isinstance(value, (bool, np.bool_, str)))
        if isinstance(dt_limit, (bytes, dict, set, frozenset)):  # which are no numbers, or have no first
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"expected dt_limit to be (least, greatest), two numbers, got: {dt_limit!r}") from None
    return least, greatest


def _components(name: str, array: Array, dtype: jnp.dtype) -> Array:
    """A complex array with its components on a last axis. Where x has 16 bits, which no complex number has, those of b and
    c are rounded to its type."""
    if not jnp.iscomplexobj(array):
        raise ValueError(f"expected {name} to be complex where a is complex, got: {kind_of(array)}")
    components = jnp.stack([array.real, array.imag], axis=-1)
    return components.astype(dtype) if name in ("b", "c") and dtype.itemsize == 2 else components


@functools.cache
def _differentiable(call: Call) -> Callable[..., list[Array]]:
    """The forward call with its gradients."""

    @jax.custom_vjp
    def scan(*operands: Array) -> list[Array]:
        return batched_call(call)(*operands)

    def forward(*operands: Array) -> tuple[list[Array], tuple[tuple[Array, ...], list[Array]]]:
        # The states between chunks spare the backward pass a forward pass.
        kept = ("boundary_states",) if scratch_of(call, dict(zip(call.operands, operands))).chunks else ()
        results = _once(batched_call(call.forward(call.results + kept)))(*operands)
        outputs = len(call.results)
        return results[:outputs], (operands, results[outputs:])

    def backward(
        residuals: tuple[tuple[Array, ...], list[Array]], cotangents: list[Array]
    ) -> tuple[Array | None, ...]:
        operands, kept = residuals
        beside = tuple(f"d{name}" for name in call.results) + ("boundary_states",) * len(kept)
        backward_call = call.backward(beside)
        gradients = _once(batched_call(backward_call))(*operands, *cotangents, *kept)
        named = dict(zip(backward_call.results, gradients))
        # Where types say how arrays are cut, a gradient has the type of its operand.
        for name, operand in zip(call.operands, operands):
            sharding = jax.typeof(operand).sharding
            if name in named and AxisType.Explicit in sharding.mesh.axis_types:
                named[name] = jax.reshard(named[name], sharding)
        return tuple(named.get(name) for name in call.operands)

    scan.defvjp(forward, backward)
    return jax.jit(scan)


def _once(function: Function) -> Function:
    """A pass of a gradient, which has no gradient of its own."""

    @jax.custom_jvp
    def once(*operands: Array) -> list[Array]:
        return function(*operands)

    @once.defjvp
    def refuse(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> typing.NoReturn:
        raise NotImplementedError(
            "selective_scan has first derivatives alone: a gradient of its gradient was asked for; where the inner one is to "
            "count as a constant, apply jax.lax.stop_gradient to what it is taken of, not to what it gives"
        )

    return once
