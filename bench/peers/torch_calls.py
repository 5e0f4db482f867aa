"""Whole calls from and to pinned memory of the host by PyTorch, with the kernel in Triton in between: the inputs are
sent, scanned, and the outputs fetched on one stream."""

from common import SHAPES, skip
from timing import wall

try:
    import torch
    import triton
except ImportError as error:
    skip(error)
from on_torch import STREAM, inputs, results_with
from triton_kernel import scan

results = results_with(f"Triton {triton.__version__}")
for shape in (shape for shape in SHAPES if shape["seq"] == 60):
    pinned = [tensor.cpu().pin_memory() for tensor in inputs(shape)]
    fetched = torch.empty_like(pinned[0]).pin_memory()

    def call():
        fetched.copy_(scan(*(tensor.to("cuda", non_blocking=True) for tensor in pinned)), non_blocking=True)

    time = lambda: wall(call, lambda _: STREAM.synchronize(), seconds=1.0)
    results.measure("PyTorch", shape, "f32", "pinned to pinned", "call", time)
results.end()
