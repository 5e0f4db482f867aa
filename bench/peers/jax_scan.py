"""What XLA, and so EXLA, makes of the scan: JAX's associative scan, Hillis and Steele's, and the sequential loop."""

import os

from common import SHAPES, Results, skip, wall

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    skip(error)
if jax.default_backend() != "gpu":
    skip(f"JAX sees no GPU, only {jax.devices()}")

from jax_recurrence import associative, hillis_steele, sequential


def inputs(shape):
    batch, seq, dim, state = (shape[axis] for axis in ("batch", "seq", "dim", "state"))
    keys = jax.random.split(jax.random.key(0), 5)
    normal = lambda key, *axes: jax.random.normal(key, axes)
    uniform = lambda key, *axes: jax.random.uniform(key, axes)
    return (
        normal(keys[0], batch, seq, dim),
        0.001 + 0.5 * uniform(keys[1], batch, seq, dim),
        -(0.05 + 2 * uniform(keys[2], dim, state)),
        normal(keys[3], batch, seq, state),
        normal(keys[4], batch, seq, state),
    )


results = Results(f"JAX {jax.__version__}", jax.devices()[0].device_kind)
for shape in SHAPES:
    given = inputs(shape)
    for who, scan in (("associative", associative), ("Hillis-Steele", hillis_steele), ("sequential", sequential)):
        forward = jax.jit(scan)
        both = jax.jit(jax.grad(lambda *tensors: jnp.square(scan(*tensors)).sum(), argnums=(0, 1, 2, 3, 4)))
        for of_pass, function in (("forward", forward), ("forward and backward", both)):
            call = lambda: wall(lambda: function(*given), jax.block_until_ready)
            results.measure(f"JAX {who}", shape, "f32", of_pass, "call", call)
results.end()
