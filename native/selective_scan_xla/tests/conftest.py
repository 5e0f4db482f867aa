"""Eight devices of the host, and double precision."""

import os

# The reference is compiled for every case: hardly optimized, that takes a quarter of the time.
flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"

import jax

jax.config.update("jax_enable_x64", True)
