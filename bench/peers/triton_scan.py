"""A kernel of our own in Triton, forward."""

from common import SHAPES, skip

try:
    import torch
    import triton
except ImportError as error:
    skip(error)
from on_torch import inputs, replay, results_with
from torch_scan import scan as in_torch
from triton_kernel import scan

results = results_with(f"Triton {triton.__version__}")

# A kernel that is wrong has no time.
small = inputs({"batch": 2, "seq": 33, "dim": 70, "state": 16})
torch.testing.assert_close(scan(*small), in_torch(*small), rtol=1e-4, atol=1e-4)

for variant, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    for shape in SHAPES:
        given = inputs(shape, dtype)
        results.measure("Triton", shape, variant, "forward", "graph replay", lambda: replay(lambda: scan(*given), shape))
results.end()
