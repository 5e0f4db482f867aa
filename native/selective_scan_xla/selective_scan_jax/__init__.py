"""The Mamba selective scan for JAX as one native operation: discretization, recurrence, skip connection and gate.

    from selective_scan_jax import selective_scan

    y = selective_scan(x, dt, a, b, c, d=d, z=z, dt_bias=dt_bias, dt_softplus=True)

It is an XLA custom call, on the CPU and on NVIDIA GPUs: inside `jax.jit` it is one operation of the compiled program,
on the device where the arrays are. It has gradients (`jax.grad`), folds under `jax.vmap`, and is cut along batch and
dim by `jax.jit` over a mesh and by `jax.shard_map`.
"""

from ._library import register
from ._scan import selective_scan

__all__ = ["register", "selective_scan"]
