"""Times the CPU backend beside JAX's compiled scans, in one run on one machine.

    pip install jax && python bench/cpu_beside_jax.py

JAX runs the recurrence as `lax.scan` (sequential) and as `lax.associative_scan`, compiled, forward and forward with
gradients; ours is `cargo bench --bench cpu`. Medians, float32, random inputs, the shapes that are played.
"""
import json
import os
import pathlib
import subprocess

os.environ["JAX_PLATFORMS"] = "cpu"
import jax

from peers.jax_recurrence import associative, inputs, sequential
from peers.registry import SHAPES
from peers.timing import wall

NATIVE = pathlib.Path(__file__).resolve().parent.parent / "native"
TARGET = NATIVE / os.environ.get("CARGO_TARGET_DIR", "target")
NAMES = ("realtime", "one game")


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
        given = inputs(SHAPES[name])
        for direction in ("forward", "forward + backward"):
            jax_times = []
            for scan in (sequential, associative):
                function = scan
                if direction != "forward":
                    function = jax.grad(lambda *args, scan=scan: (scan(*args) ** 2).sum(), argnums=(0, 1, 2, 3, 4))
                compiled = jax.jit(function)
                jax_times.append(wall(lambda: compiled(*given), jax.block_until_ready, seconds=3.0) / 1e3)
            # Our backward pass computes the states it needs itself: beside it, the forward pass of a training step.
            ours = ours_ms("forward", name) + (ours_ms("backward", name) if direction != "forward" else 0.0)
            row = f"{name:10} {direction:20} {jax_times[0]:12.2f} ms {jax_times[1]:13.2f} ms {ours:6.3f} ms"
            print(f"{row}  {min(jax_times) / ours:.1f}", flush=True)


if __name__ == "__main__":
    main()
