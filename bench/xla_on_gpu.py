"""Times the custom call inside compiled programs on a GPU, beside JAX's associative scan, in one run; and shows that
XLA records it in CUDA graphs.

    pip install native/selective_scan_xla && python bench/xla_on_gpu.py [folder for dumps]

Medians, float32, state 16, random inputs. "call" is the wall time of one compiled call, waited for; "in a row" that of
one of 100 calls that are waited for together; "in a program" what one more scan costs a program of scans that depend on
one another; "on the device" the sum of a call's kernels in a profile. The first two have in them what any call of JAX
costs, which is shown as well.
"""

import functools
import gzip
import json
import os
import pathlib
import statistics
import sys
import time

DUMPS = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/xla_on_gpu")
FLAGS = f"--xla_dump_to={DUMPS}/hlo --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*mamba.*"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

import jax
import jax.numpy as jnp

from peers.jax_recurrence import associative, inputs
from peers.registry import SHAPES
from selective_scan_jax import selective_scan

# The others keep JAX's scan, which holds every state of every frame, busy for minutes.
NAMES = ("realtime", "one game", "profile", "vision")
BLOCK_STATE = 16
IN_A_ROW, IN_A_PROGRAM = 100, (4, 12)


def ours(x, dt, a, b, c):
    return selective_scan(x, dt, a, b, c)


def times(function, arguments, seconds=1.0):
    """µs of a call, and of one of many in a row."""
    function = jax.jit(function)
    for _ in range(5):
        jax.block_until_ready(function(*arguments))
    single, row, end = [], [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(row) < 3:
        for _ in range(20):
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            single.append(time.perf_counter() - start)
        start = time.perf_counter()
        results = [function(*arguments) for _ in range(IN_A_ROW)]
        jax.block_until_ready(results)
        row.append((time.perf_counter() - start) / IN_A_ROW)
    return 1e6 * statistics.median(single), 1e6 * statistics.median(row)


def forward(scan, x, dt, a, b, c):
    return scan(x, dt, a, b, c)


def forward_and_backward(scan, x, dt, a, b, c):
    return jax.grad(lambda *v: jnp.sum(jnp.square(scan(*v))), argnums=(0, 1, 2, 3, 4))(x, dt, a, b, c)


def in_a_program(passes, scan, arguments):
    """µs that one more scan costs a program of scans that depend on one another."""

    def chain(length):
        def chain(x, dt, a, b, c):
            rest = []
            for _ in range(length):
                x, *others = jax.tree.leaves(passes(scan, x, dt, a, b, c))
                x = jnp.clip(x, -1, 1)
                rest.append(others)
            return x, rest

        return times(chain, arguments)[0]

    short, long = IN_A_PROGRAM
    return (chain(long) - chain(short)) / (long - short)


def mamba_parameters(key, model=256, inner=512, rank=16, width=4):
    keys = jax.random.split(key, 8)
    normal = lambda key, *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
    return {
        "norm": jnp.ones((model,)),
        "in": normal(keys[0], model, 2 * inner),
        "convolution": normal(keys[1], width, 1, inner),
        "project": normal(keys[2], inner, rank + 2 * BLOCK_STATE),
        "dt": normal(keys[3], rank, inner),
        "dt_bias": jax.random.uniform(keys[4], (inner,), minval=-6.0, maxval=-2.0),
        "a": jnp.log(jnp.tile(jnp.arange(1.0, BLOCK_STATE + 1), (inner, 1))),
        "d": jnp.ones((inner,)),
        "out": normal(keys[5], inner, model),
    }


def mamba_layer(scan, p, hidden):
    normed = hidden * jax.lax.rsqrt(jnp.mean(jnp.square(hidden), -1, keepdims=True) + 1e-5) * p["norm"]
    x, z = jnp.split(normed @ p["in"], 2, axis=-1)
    inner = x.shape[-1]
    x = jax.lax.conv_general_dilated(
        x, p["convolution"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=inner
    )
    x = jax.nn.silu(x)
    dt, b, c = jnp.split(x @ p["project"], [p["dt"].shape[0], p["dt"].shape[0] + BLOCK_STATE], axis=-1)
    y = scan(x, dt @ p["dt"], -jnp.exp(p["a"]), b, c, p["d"], z, p["dt_bias"])
    return hidden + y @ p["out"]


def fused(x, dt, a, b, c, d, z, bias):
    return selective_scan(x, dt, a, b, c, d=d, z=z, dt_bias=bias, dt_softplus=True)


def unfused(x, dt, a, b, c, d, z, bias):
    return (associative(x, jax.nn.softplus(dt + bias), a, b, c) + d * x) * jax.nn.silu(z)


def two_layer_mamba(scan):
    def two_layer_mamba(parameters, hidden):
        for p in parameters:
            hidden = mamba_layer(scan, p, hidden)
        return hidden

    return two_layer_mamba


def kernel_times(function, arguments, folder, calls=20):
    """µs on the device a call, by kernel; and what the host calls of the driver."""
    function = jax.jit(function)
    jax.block_until_ready(function(*arguments))
    with jax.profiler.trace(str(folder)):
        for _ in range(calls):
            jax.block_until_ready(function(*arguments))
    (path,) = sorted(folder.rglob("*.trace.json.gz"))[-1:]
    events = json.load(gzip.open(path))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    kernels, host = {}, {}
    for e in events:
        if e.get("ph") != "X":
            continue
        on_device = "GPU" in names.get(e["pid"], "")
        if on_device and "Stream" in threads.get((e["pid"], e["tid"]), ""):
            kernels.setdefault(e["name"], [0.0, 0])
            kernels[e["name"]][0] += e["dur"] / calls
            kernels[e["name"]][1] += 1 / calls
            kernels[e["name"]].append(e.get("args", {}))
        elif not on_device:
            host[e["name"]] = host.get(e["name"], 0) + 1 / calls
    return kernels, host


def show_mamba():
    parameters = [mamba_parameters(key) for key in jax.random.split(jax.random.key(1), 2)]
    hidden = jax.random.normal(jax.random.key(2), (32, 60, 256))
    loss = lambda scan: jax.grad(lambda p, h: jnp.sum(jnp.square(two_layer_mamba(scan)(p, h))))
    for title, make in (("forward", two_layer_mamba), ("gradients", loss)):
        mine, theirs = (times(make(scan), (parameters, hidden)) for scan in (fused, unfused))
        print(f"two-layer Mamba, {title}: ours {mine[0]:.1f} µs a call, {mine[1]:.1f} in a row; "
              f"with the associative scan {theirs[0]:.1f}, {theirs[1]:.1f}")
        kernels, host = kernel_times(make(fused), (parameters, hidden), DUMPS / title)
        every = sum(k[0] for k in kernels.values())
        scans = {n: k for n, k in kernels.items() if n.startswith("scan_")}
        own = sum(k[0] for k in scans.values())
        print(f"  on the device {every:.1f} µs a call, of it the scan {own:.1f} µs: {100 * own / every:.0f}%")
        for name, (spent, count, *arguments) in sorted(scans.items()):
            graph = {k: v for k, v in arguments[0].items() if "graph" in k.lower()} if arguments else {}
            print(f"    {name}: {spent:.1f} µs, {count:.1f} launches a call {graph}")
        launches = sum(count for event, count in host.items() if event.startswith("cuGraphLaunch"))
        print(f"  {launches:.0f} launches of a graph a call")


def show_graphs():
    """The custom calls in the programs that XLA dumps, and whether they lie in a graph of its."""
    for path in sorted(p for p in (DUMPS / "hlo").rglob("*mamba*thunk_sequence_after_thunk_passes.txt") if p.is_file()):
        lines = path.read_text(errors="replace").splitlines()
        calls = [line for line in lines if "kCustomCall" in line]
        inside = [line for line in calls if line.startswith(" ")]
        graphs = sum("kCommandBuffer" in line for line in lines)
        print(f"{path.name}: {graphs} graphs; {len(inside)} of {len(calls)} custom calls lie in one")


def on_the_device(function, arguments):
    """µs of the kernels of a call."""
    kernels, _ = kernel_times(function, arguments, DUMPS / "kernels")
    return sum(kernel[0] for kernel in kernels.values())


def main():
    device = jax.devices()[0]
    if device.platform != "gpu":
        print(f"SKIPPED: the benchmark in XLA's programs needs a GPU, and JAX sees only {device}")
        return
    print(f"{device.device_kind}, {device.platform}, JAX {jax.__version__}")
    call, row = times(lambda *v: v[0] + 1, inputs(SHAPES["one game"]))
    print(f"a call of JAX that adds 1: {call:.1f} µs; in a row {row:.1f} µs", flush=True)
    for name in NAMES:
        arguments = inputs(SHAPES[name])
        for passes in (forward, forward_and_backward):
            measured = []
            for scan in (ours, associative):
                function = functools.partial(passes, scan)
                measured.append([*times(function, arguments), on_the_device(function, arguments)])
                if name == "realtime":
                    measured[-1].append(in_a_program(passes, scan, arguments))
            titles = ("call", "in a row", "on the device", "in a program")
            words = [f"{t} {m:.1f} beside {o:.1f} µs, {o / m:.1f} times" for t, m, o in zip(titles, *measured)]
            print(f"{name} {arguments[0].shape} {passes.__name__.replace('_', ' ')}: {'; '.join(words)}", flush=True)
    show_mamba()
    show_graphs()


main()
