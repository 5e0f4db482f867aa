"""Puts the native library into the package: built by cargo, or the one that EXPHIL_XLA_LIBRARY names."""

import os
import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

FOLDER = pathlib.Path(__file__).resolve().parent


def native_library() -> pathlib.Path:
    if given := os.environ.get("EXPHIL_XLA_LIBRARY"):
        return pathlib.Path(given)
    if shutil.which("cargo") is None:
        raise SystemExit(
            "selective_scan_jax has a native library, and cargo, which builds it, is not on the path: install Rust "
            "1.91 or newer (https://rustup.rs), or let EXPHIL_XLA_LIBRARY name a library that is built already"
        )
    # Where it is relative, cargo takes it from where it runs.
    target = FOLDER.parent / os.environ.get("CARGO_TARGET_DIR", "target")
    command = ["cargo", "build", "--release", "--locked", "--package", "selective_scan_xla", "--target-dir", target]
    subprocess.run(command, cwd=FOLDER.parent, check=True)
    for name in ("libselective_scan_xla.so", "libselective_scan_xla.dylib"):
        if (target / "release" / name).exists():
            return target / "release" / name
    raise SystemExit(f"cargo has built no library in {target}/release")


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        library = native_library()
        package = pathlib.Path(self.build_lib) / "selective_scan_jax"
        if self.editable_mode:
            package = FOLDER / "selective_scan_jax"
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, package / f"libselective_scan_xla{library.suffix}")


class NativeDistribution(Distribution):
    """The wheel is one of this platform, though nothing in it is of one Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=NativeDistribution)
