"""What XLA, and so EXLA, makes of the scan: JAX's associative scan, Hillis and Steele's, and the sequential loop."""

import os

from common import SHAPES, Results, skip
from timing import wall

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    skip(error)
if jax.default_backend() != "gpu":
    skip(f"JAX sees no GPU, only {jax.devices()}")

from jax_recurrence import associative, hillis_steele, inputs, sequential

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
