"""The package is installed from its folder, and finds the library that came with it."""

import ctypes.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from selective_scan_jax import _library

FOLDER = pathlib.Path(__file__).resolve().parents[1]


def test_a_program_of_another_process_runs_once_the_handlers_are_registered(tmp_path):
    made = (
        "import pickle, sys, jax, jax.numpy as jnp; from jax.experimental.serialize_executable import serialize;"
        "from selective_scan_jax import selective_scan; v = jnp.ones((1, 3, 1));"
        "program = jax.jit(lambda v: selective_scan(v, v, jnp.zeros((1, 1)), v, v)).lower(v).compile();"
        "pickle.dump(serialize(program), open(sys.argv[1], 'wb'))"
    )
    run = (
        "import pickle, sys, jax.numpy as jnp; from jax.experimental.serialize_executable import deserialize_and_load;"
        "import selective_scan_jax; selective_scan_jax.register();"
        "print(deserialize_and_load(*pickle.load(open(sys.argv[1], 'rb')))(jnp.ones((1, 3, 1))).ravel())"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(FOLDER), "XLA_FLAGS": ""}  # one device
    for program in (made, run):
        arguments = [sys.executable, "-c", program, tmp_path / "program"]
        said = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("[1. 2. 3.]"), said


def test_another_library_is_none(tmp_path, monkeypatch):
    # Where there is none, and where it has none of the functions.
    for name in (str(tmp_path / "none.so"), ctypes.util.find_library("c")):
        monkeypatch.setenv("EXPHIL_XLA_LIBRARY", name)
        with pytest.raises(ImportError, match=f"{name} is not the native library of selective_scan_jax"):
            _library.library.__wrapped__()


def test_pip_installs_it_with_its_library(tmp_path):
    pytest.importorskip("setuptools", minversion="70.1")
    pytest.importorskip("pip")
    sources = shutil.copytree(FOLDER, tmp_path / "sources", ignore=shutil.ignore_patterns("build", "*.so", "tests"))
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", site]
    environment = os.environ | {"EXPHIL_XLA_LIBRARY": str(_library._path())}
    subprocess.run([*install, sources], check=True, env=environment, capture_output=True)
    del environment["EXPHIL_XLA_LIBRARY"]
    program = (
        "import jax, jax.numpy as jnp; from selective_scan_jax import selective_scan, _library;"
        "v = jnp.ones((1, 3, 1)); print(selective_scan(v, v, jnp.zeros((1, 1)), v, v).ravel(), _library._path())"
    )
    environment |= {"PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.startswith("[1. 2. 3.]") and str(site) in run.stdout, run.stderr
