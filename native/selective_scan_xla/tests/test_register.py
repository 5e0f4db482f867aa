"""Registration as EXLA's users get it: by the library itself, with the XLA that it finds in its process.

EXLA's XLA is a library called libxla_extension.so that answers `XLA_FFI_GetApi`. Here one of that name, a dozen lines
long, answers with the table of JAX's XLA; the table comes with any call of a handler.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
import jax, jax.numpy as jnp
import numpy as np
from selective_scan_jax import _library

sys.path.insert(0, sys.argv[2])
library = ctypes.CDLL(str(_library._path()))
message = ctypes.create_string_buffer(1000)
register = lambda: library.exphil_selective_scan_register(message, ctypes.c_size_t(1000))
assert register() == 0, "there is no EXLA yet"

# The table of XLA is the third word of a call frame.
tables = []

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
def handler(frame):
    tables.append(frame[2])

try:
    jax.ffi.register_ffi_target("any", jax.ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p).value), platform="cpu")
    jax.block_until_ready(jax.ffi.ffi_call("any", jax.ShapeDtypeStruct((1,), "float32"))())
except Exception:
    pass  # JAX asks for the version of the handler, which this one does not know: it has been called all the same.
xla = ctypes.CDLL(sys.argv[1])
ctypes.c_void_p.in_dll(xla, "table").value = tables[0]

assert register() == 1, message.value
assert register() == 1, message.value

from test_handlers import call, quoted
from problems import assert_close, random, theirs
_library.library = lambda: None  # JAX has registered nothing.
arrays = {n: v for n, v in random(1, optional=()).items()}
results = [jax.ShapeDtypeStruct(arrays["x"].shape, jnp.float64)]
(y,) = call(arrays, results, {"operands": quoted(arrays), "results": '"y"'})
assert_close(y, theirs(arrays)[0], 1e-11)
print("registered")
"""

LIBRARY = "const void *table; const void *XLA_FFI_GetApi(void) { return table; }"


def test_with_the_xla_of_the_process(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    library = tmp_path / "libxla_extension.so"
    (tmp_path / "xla.c").write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libxla_extension.so", tmp_path / "xla.c", "-o", library]
    subprocess.run(command, check=True)
    tests = pathlib.Path(__file__).parent
    program = "import sys; sys.path.insert(0, sys.argv[2]); import conftest\n" + PROGRAM
    command = [sys.executable, "-c", program, library, tests]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.stdout.strip() == "registered", run.stderr
