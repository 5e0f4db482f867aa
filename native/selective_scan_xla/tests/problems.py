"""Random problems, and how far apart two results are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import reference
from selective_scan_jax import selective_scan

OPTIONAL = ("d", "z", "dt_bias", "initial_state")


def random(seed=0, *, batch=2, seq=37, dim=8, state=4, layout="frame", is_complex=False, optional=OPTIONAL, packed=False):
    """Arrays by name, in float64. `layout` of b and c: "frame", "groups", "constant" or "mixed"."""
    rng = np.random.default_rng(seed)
    real = lambda *shape: rng.standard_normal(shape)
    field = (lambda *shape: real(*shape) + 1j * real(*shape)) if is_complex else real
    shapes = {
        "frame": ((batch, seq, state), (batch, seq, state)),
        "groups": ((batch, seq, 2, state), (batch, seq, 4, state)),
        "constant": ((dim, state), (dim, state)),
        "mixed": ((dim, state), (batch, seq, 2, state)),
    }[layout]
    a = -np.exp(real(dim, state))
    arrays = {
        "x": real(batch, seq, dim),
        "dt": rng.uniform(0.01, 0.7, (batch, seq, dim)),
        "a": a + 1j * real(dim, state) if is_complex else a,
        "b": field(*shapes[0]),
        "c": field(*shapes[1]),
        "d": real(dim),
        "z": real(batch, seq, dim),
        "dt_bias": 0.1 * real(dim),
        "initial_state": field(batch, dim, state),
    }
    arrays = {name: v for name, v in arrays.items() if name in ("x", "dt", "a", "b", "c", *optional)}
    if packed:
        arrays["seq_idx"] = np.sort(rng.integers(0, 4, (batch, seq)), axis=1).astype(np.int32)
    return {name: jnp.asarray(v) for name, v in arrays.items()}


def single(arrays, kind="float32"):
    """The arrays with sequences of another type, and the rest of the type that belongs to it."""
    rest = {"float64": "float64"}.get(kind, "float32")
    complex_rest = {"float64": "complex128"}.get(rest, "complex64")

    def cast(name, v):
        if v.dtype == jnp.int32:
            return v
        if jnp.iscomplexobj(v):
            return v.astype(complex_rest)
        return v.astype(kind if name in ("x", "dt", "b", "c", "z") else rest)

    return {name: cast(name, v) for name, v in arrays.items()}


def split(arrays):
    """The five arguments, and the keywords."""
    return [arrays[name] for name in ("x", "dt", "a", "b", "c")], {
        name: v for name, v in arrays.items() if name not in ("x", "dt", "a", "b", "c")
    }


def ours(arrays, **options):
    arguments, keywords = split(arrays)
    return selective_scan(*arguments, **keywords, **options, return_final_state=True)


def theirs(arrays, coefficients="exact", at_once=False, **options):
    # On the host: it is compiled operation by operation, which takes a GPU long.
    host = jax.devices("cpu")[0]
    with jax.default_device(host):
        arguments, keywords = split(jax.device_put(arrays, host))
        scan = functools.partial(reference.scan, coefficients_=coefficients, **options)
        return (jax.jit(scan) if at_once else scan)(*arguments, **keywords)


# Compiled as a whole: of a shape that no other test has, every operation would be compiled anew.
theirs_at_once = functools.partial(theirs, at_once=True)


def gradients(function, arrays, **options):
    """Of a loss in which y and the final state have weights of their own."""
    floats = {name: v for name, v in arrays.items() if v.dtype != jnp.int32}
    rest = {name: v for name, v in arrays.items() if v.dtype == jnp.int32}

    def loss(floats):
        y, state = function(floats | rest, **options)
        y = y.astype(jnp.promote_types(y.dtype, jnp.float32))
        weights = lambda v: jnp.cos(jnp.arange(v.size, dtype=y.dtype)).reshape(v.shape)
        return jnp.sum(y * weights(y)) + jnp.sum((state * weights(state) * (1 - 0.5j if jnp.iscomplexobj(state) else 1)).real)

    return jax.grad(loss)(floats)


def distance(got, expected):
    """‖got − expected‖ / ‖expected‖."""
    got, expected = (np.asarray(v).astype(np.complex128).ravel() for v in (got, expected))
    assert got.shape == expected.shape and np.all(np.isfinite(got))
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30)


def assert_close(got, expected, tolerance):
    for (path, g), (_, e) in zip(*(jax.tree_util.tree_leaves_with_path(v) for v in (got, expected)), strict=True):
        assert g.shape == e.shape, (path, g.shape, e.shape)
        assert distance(g, e) <= tolerance, (path, distance(g, e))
