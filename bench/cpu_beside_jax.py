"""Times the CPU backend beside JAX's compiled scans, in one run on one machine.

    pip install jax && python bench/cpu_beside_jax.py

JAX runs the recurrence as `lax.scan` (sequential) and as `lax.associative_scan`, compiled, forward and forward with
gradients; ours is `cargo bench --bench cpu`. Medians, float32, random inputs, the shapes that are played.
"""
import json
import os
import pathlib
import statistics
import subprocess
import time

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

from peers.jax_recurrence import associative, sequential
from peers.registry import SHAPES

NATIVE = pathlib.Path(__file__).resolve().parent.parent / "native"
TARGET = NATIVE / os.environ.get("CARGO_TARGET_DIR", "target")
NAMES = ("realtime", "one game")


def median_ms(function, arguments, seconds=3.0):
    jax.block_until_ready(function(*arguments))
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def ours_ms(direction, shape):
    command = ["cargo", "bench", "--quiet", "--bench", "cpu", "--", f"^{direction}/{shape}$", "--noplot"]
    subprocess.run(command, cwd=NATIVE, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = TARGET / "criterion" / direction / shape.replace(" ", "_")
    if not folder.exists():
        folder = folder.with_name(shape)
    return json.loads((folder / "new" / "estimates.json").read_text())["median"]["point_estimate"] / 1e6


def main():
    print(f"{'':10} {'direction':20} {'JAX sequential':>15} {'JAX associative':>16} {'ours':>9}  times faster than the best")
    for name in NAMES:
        batch, seq, dim, state = (SHAPES[name][axis] for axis in ("batch", "seq", "dim", "state"))
        keys = jax.random.split(jax.random.key(0), 4)
        x = jax.random.normal(keys[0], (batch, seq, dim))
        dt = 0.001 + 0.5 * jax.random.uniform(keys[1], (batch, seq, dim))
        a = -jnp.ones((dim, 1)) * jnp.arange(1.0, state + 1)
        b, c = (jax.random.normal(key, (batch, seq, state)) for key in keys[2:])
        for direction in ("forward", "forward + backward"):
            jax_times = []
            for scan in (sequential, associative):
                function = scan
                if direction != "forward":
                    function = jax.grad(lambda *args, scan=scan: (scan(*args) ** 2).sum(), argnums=(0, 1, 2, 3, 4))
                jax_times.append(median_ms(jax.jit(function), (x, dt, a, b, c)))
            # Our backward pass computes the states it needs itself: beside it, the forward pass of a training step.
            ours = ours_ms("forward", name) + (ours_ms("backward", name) if direction != "forward" else 0.0)
            row = f"{name:10} {direction:20} {jax_times[0]:12.2f} ms {jax_times[1]:13.2f} ms {ours:6.3f} ms"
            print(f"{row}  {min(jax_times) / ours:.1f}", flush=True)


if __name__ == "__main__":
    main()
