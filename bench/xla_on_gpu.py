"""Times the custom call inside compiled programs on a GPU, beside JAX's associative scan, in one run; and shows that
XLA records it in CUDA graphs.

    pip install native/selective_scan_xla && python bench/xla_on_gpu.py [folder for dumps]

Medians, float32, state 16, random inputs. "call" is the wall time of one compiled call, waited for; "in a row" that of
one of 100 calls that are waited for together; "in a program" that of one of 8 scans that depend on one another in one
program.
"""

import gzip
import json
import os
import pathlib
import re
import statistics
import sys
import time

DUMPS = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/xla_on_gpu")
# A program of less than five operations is not worth a graph to XLA; ours are to show that they can be in one.
FLAGS = f"--xla_dump_to={DUMPS}/hlo --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*mamba.*"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

import jax
import jax.numpy as jnp

from selective_scan_jax import selective_scan

SHAPES = {"realtime": (32, 60, 512), "one game": (1, 60, 512), "profile": (8, 1024, 512), "vision": (64, 197, 768)}
STATE = 16
IN_A_ROW, IN_A_PROGRAM = 100, 8


def ours(x, dt, a, b, c):
    return selective_scan(x, dt, a, b, c)


def associative(x, dt, a, b, c):
    decay = jnp.exp(dt[..., None] * a)
    drive = (dt * x)[..., None] * b[:, :, None, :]
    _, h = jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (decay, drive), axis=1)
    return (h * c[:, :, None, :]).sum(-1)


def inputs(batch, seq, dim):
    keys = jax.random.split(jax.random.key(0), 5)
    normal = lambda key, *shape: jax.random.normal(key, shape)
    return (
        normal(keys[0], batch, seq, dim),
        jax.random.uniform(keys[1], (batch, seq, dim), minval=0.001, maxval=0.1),
        -jnp.exp(normal(keys[2], dim, STATE)),
        normal(keys[3], batch, seq, STATE),
        normal(keys[4], batch, seq, STATE),
    )


def with_gradients(scan):
    return lambda *v: jax.value_and_grad(lambda *v: jnp.sum(jnp.square(scan(*v))), argnums=(0, 1, 2, 3, 4))(*v)


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


def in_a_program(scan, arguments):
    """µs of one of many scans that depend on one another."""

    def chain(x, dt, a, b, c):
        for _ in range(IN_A_PROGRAM):
            x = scan(x, dt, a, b, c) * 0.5
        return x

    return times(chain, arguments)[0] / IN_A_PROGRAM


def gradients_in_a_program(scan, arguments):
    def chain(x, dt, a, b, c):
        step = lambda x: jax.grad(lambda *v: jnp.sum(jnp.square(scan(*v))), argnums=(0, 1, 2, 3, 4))(x, dt, a, b, c)
        rest = []
        for _ in range(IN_A_PROGRAM):
            x, *others = step(x)
            x = jnp.clip(x, -1, 1)
            rest.append(others)
        return x, rest

    return times(chain, arguments)[0] / IN_A_PROGRAM


def mamba_parameters(key, model=256, inner=512, rank=16, width=4):
    keys = jax.random.split(key, 8)
    normal = lambda key, *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
    return {
        "norm": jnp.ones((model,)),
        "in": normal(keys[0], model, 2 * inner),
        "convolution": normal(keys[1], width, 1, inner),
        "project": normal(keys[2], inner, rank + 2 * STATE),
        "dt": normal(keys[3], rank, inner),
        "dt_bias": jax.random.uniform(keys[4], (inner,), minval=-6.0, maxval=-2.0),
        "a": jnp.log(jnp.tile(jnp.arange(1.0, STATE + 1), (inner, 1))),
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
    dt, b, c = jnp.split(x @ p["project"], [p["dt"].shape[0], p["dt"].shape[0] + STATE], axis=-1)
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
        driver = {n: round(k, 2) for n, k in host.items() if re.search(r"graph|LaunchKernel|CommandBuffer", n, re.I)}
        print(f"  host, events a call: {driver}")


def show_graphs():
    """Where the dumps have the custom call inside a command buffer."""
    for path in sorted(p for p in (DUMPS / "hlo").rglob("*mamba*") if p.is_file()):
        text = path.read_text(errors="replace")
        if "thunk" in path.name and "exphil_selective_scan" in text:
            lines = text.splitlines()
            inside = [
                line.strip()[:160] for line in lines if re.search(r"command_?buffer|exphil_selective_scan", line, re.I)
            ]
            print(path.name, *inside[:8], sep="\n    ")
        elif path.name.endswith("gpu_after_optimizations.txt"):
            computations = re.findall(r"%?(command_buffer[\w.]*) \(.*?\n}", text, re.S)
            blocks = re.findall(r"^%?command_buffer.*?^}", text, re.S | re.M)
            with_scan = sum("exphil_selective_scan" in block for block in blocks)
            print(f"{path.name}: {len(computations)} command buffers in the text, {with_scan} with the scan")


def main():
    device = jax.devices()[0]
    print(f"{device.device_kind}, {device.platform}, JAX {jax.__version__}")
    for name, shape in SHAPES.items():
        arguments = inputs(*shape)
        for title, transform, chain in (
            ("forward", lambda scan: scan, in_a_program),
            ("forward and backward", with_gradients, gradients_in_a_program),
        ):
            (call, row), (other_call, other_row) = (times(transform(scan), arguments) for scan in (ours, associative))
            print(f"{name} {shape} {title}: call {call:.1f} beside {other_call:.1f} µs, {other_call / call:.1f} times; "
                  f"in a row {row:.1f} beside {other_row:.1f}, {other_row / row:.1f} times", end="")
            if name == "realtime":
                mine, theirs = chain(ours, arguments), chain(associative, arguments)
                print(f"; in a program {mine:.1f} beside {theirs:.1f}, {theirs / mine:.1f} times", end="")
            print(flush=True)
    show_mamba()
    show_graphs()


main()
