"""The registry of shapes, bench/shapes.json, for every script in Python."""

import json
import pathlib

REGISTRY = json.loads((pathlib.Path(__file__).resolve().parent.parent / "shapes.json").read_text())
SHAPES = {shape["name"]: shape for shape in REGISTRY["shapes"]}
