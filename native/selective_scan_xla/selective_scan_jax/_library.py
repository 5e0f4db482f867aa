"""The native library: where it lies, its registration with XLA, and what it says of a call before it is compiled."""

import ctypes
import functools
import os
import pathlib
import typing

import jax

FORWARD = "exphil_selective_scan_fwd"
BACKWARD = "exphil_selective_scan_bwd"

_FOLDER = pathlib.Path(__file__).resolve().parent
_NAMES = ("libselective_scan_xla.so", "libselective_scan_xla.dylib")


class Scratch(typing.NamedTuple):
    """The memory of a call beside its tensors."""

    forward_workspace: int
    """Bytes."""
    backward_workspace: int
    """Bytes."""
    chunks: int
    """The third axis of the boundary states; 0 where the backward pass has no use for them."""


def _path() -> pathlib.Path:
    """The file that EXPHIL_XLA_LIBRARY names, else the one in the package, else what cargo has built beside it."""
    if given := os.environ.get("EXPHIL_XLA_LIBRARY"):
        return pathlib.Path(given)
    folders = (_FOLDER, _FOLDER.parents[1] / "target" / "release")
    for path in (folder / name for folder in folders for name in _NAMES):
        if path.exists():
            return path
    raise ImportError(
        "the native library of selective_scan_jax was not found: install the package with pip where cargo is on the "
        "path, or let the environment variable EXPHIL_XLA_LIBRARY name libselective_scan_xla.so"
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The library, with its handlers registered."""
    path = _path()
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.exphil_selective_scan_scratch  # or it is another library
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{path} is not the native library of selective_scan_jax ({error}); install the package with pip, or let the "
            "environment variable EXPHIL_XLA_LIBRARY name libselective_scan_xla.so"
        ) from None
    jax.devices()  # Before its first look at devices, JAX only remembers registrations, and may forget one.
    for name, function in ((FORWARD, "exphil_selective_scan_fwd"), (BACKWARD, "exphil_selective_scan_bwd")):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(loaded[f"{function}_host"]), platform="cpu")
        cuda = jax.ffi.pycapsule(loaded[f"{function}_cuda"])
        jax.ffi.register_ffi_target(name, {"initialize": cuda, "execute": cuda}, platform="CUDA")
    return loaded


def register() -> None:
    """Registers the handlers with XLA. The first scan does so, too: this is for a process that loads programs which another has
    compiled, before it makes any itself."""
    library()


@functools.cache
def platform() -> str:
    """Who programs are compiled for: CUDA, by XLA's names, where JAX has such devices, else Host."""
    try:
        return "CUDA" if jax.devices("cuda") else "Host"
    except RuntimeError:
        return "Host"


@functools.lru_cache(maxsize=4096)
def scratch(problem: str) -> Scratch:
    """Checks a problem in words, `x=f32[2,60,512] … method=foh`. Raises `ValueError` where there is something wrong
    with it."""
    loaded = library()
    answer = (ctypes.c_uint64 * 3)()
    message = ctypes.create_string_buffer(4096)
    refused = loaded.exphil_selective_scan_scratch(
        platform().encode(), problem.encode(), answer, message, ctypes.c_size_t(len(message))
    )
    if refused:
        raise ValueError(message.value.decode(errors="replace"))
    return Scratch(*answer)
