"""The package is installed from its folder, and finds the library that came with it."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from selective_scan_jax import _library

FOLDER = pathlib.Path(__file__).resolve().parents[1]


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
