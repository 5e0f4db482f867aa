"""Inputs and graph replay for the peers that live in PyTorch."""

import statistics

import torch

from common import Results, skip

if not torch.cuda.is_available():
    skip("PyTorch sees no GPU")

# Everything, what autograd remembers included, runs on the stream that graphs are captured from.
STREAM = torch.cuda.Stream()
torch.cuda.set_stream(STREAM)


def results_with(*versions):
    """Those of a peer that is made of PyTorch and of these."""
    return Results(", ".join([*versions, f"PyTorch {torch.__version__}"]), torch.cuda.get_device_name())


def inputs(shape, dtype=torch.float32):
    """x, dt, a, b, c of {batch, seq, dim}, as the tests draw them."""
    batch, seq, dim, state = (shape[axis] for axis in ("batch", "seq", "dim", "state"))
    normal = lambda *axes: torch.randn(*axes, device="cuda").to(dtype)
    dt = (0.001 + 0.5 * torch.rand(batch, seq, dim, device="cuda")).to(dtype)
    a = -(0.05 + 2 * torch.rand(dim, state, device="cuda"))
    return normal(batch, seq, dim), dt, a, normal(batch, seq, state), normal(batch, seq, state)


def replay(call, shape, repeats=15):
    """The median time of the kernels of a call, replayed as a graph: tests/gpu/timing.rs does the same for ours."""
    calls = 20 if shape["batch"] * shape["seq"] * shape["dim"] < 2_000_000 else 2
    for _ in range(2):
        call()
    STREAM.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        for _ in range(calls):
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for repeat in range(repeats + 3):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if repeat >= 3:
            times.append(1e3 * start.elapsed_time(end) / calls)
    return statistics.median(times)
