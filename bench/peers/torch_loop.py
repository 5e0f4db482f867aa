"""The loop in PyTorch, on the shapes that it can be waited for: eager up to 1024 frames; compiled, where every frame is
unrolled and minutes go into the gradients, forward and up to 64. Eager comes first: a run that is cut short has it."""

from common import SHAPES, skip
from timing import wall

try:
    import torch
except ImportError as error:
    skip(error)
from on_torch import inputs, results_with
from torch_scan import scan

WAYS = (("PyTorch eager", scan, 1024), ("PyTorch compiled", torch.compile(scan, dynamic=False), 64))

results = results_with()
for who, function, longest in WAYS:
    for shape in SHAPES:
        if shape["seq"] > longest:
            continue
        given = [tensor.requires_grad_() for tensor in inputs(shape)]
        wait = lambda _: torch.cuda.synchronize()

        def forward():
            with torch.no_grad():
                return function(*given)

        def both():
            return torch.autograd.grad(function(*given).square().sum(), given)

        results.measure(who, shape, "f32", "forward", "call", lambda: wall(forward, wait))
        if function is scan:
            results.measure(who, shape, "f32", "forward and backward", "call", lambda: wall(both, wait))
results.end()
