"""mamba_ssm's CUDA extension, forward and backward, in its own layout {batch, dim, seq}."""

import importlib.metadata

from common import SHAPES, skip

try:
    import torch
    import selective_scan_cuda as extension
except ImportError as error:
    skip(error)
from on_torch import inputs, replay, results_with


def call(function, *arguments):
    """Newer versions take the bounds of packed sequences as a last argument."""
    try:
        return function(*arguments)
    except TypeError:
        return function(*arguments, None)


def version():
    try:
        return importlib.metadata.version("mamba_ssm")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


results = results_with(f"mamba_ssm {version()}")
for variant, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    for shape in SHAPES:
        x, dt, a, b, c = inputs(shape, dtype)
        x, dt, b, c = (tensor.transpose(1, 2).contiguous() for tensor in (x, dt, b, c))
        b, c = b[:, None], c[:, None]

        def forward():
            return call(extension.fwd, x, dt, a, b, c, None, None, None, False)

        def backward_time():
            y, states, *_ = forward()
            dy = torch.randn_like(y)
            given = (x, dt, a, b, c, None, None, None, dy, states, None, None, False, False)
            return replay(lambda: call(extension.bwd, *given), shape)

        results.measure("mamba_ssm", shape, variant, "forward", "graph replay", lambda: replay(forward, shape))
        results.measure("mamba_ssm", shape, variant, "backward", "graph replay", backward_time)
results.end()
