"""The loop in PyTorch, on the shapes that it can be waited for: eager up to 1024 frames; compiled, where every frame is
unrolled and minutes go into the gradients, forward and up to 64."""

from common import SHAPES, Results, skip, wall

try:
    import torch
except ImportError as error:
    skip("PyTorch", error)
from on_torch import VERSION, inputs
from torch_scan import scan

LONGEST = {"PyTorch eager": 1024, "PyTorch compiled": 64}

results = Results(VERSION)
for shape in SHAPES:
    given = [tensor.requires_grad_() for tensor in inputs(shape)]
    for who, function in (("PyTorch eager", scan), ("PyTorch compiled", torch.compile(scan, dynamic=False))):
        if shape["seq"] > LONGEST[who]:
            continue
        wait = lambda _: torch.cuda.synchronize()

        def forward():
            with torch.no_grad():
                return function(*given)

        def both():
            return torch.autograd.grad(function(*given).square().sum(), given)

        results.measure(who, shape, "f32", "forward", "call", lambda: wall(forward, wait))
        if function is scan:
            results.measure(who, shape, "f32", "forward and backward", "call", lambda: wall(both, wait))
