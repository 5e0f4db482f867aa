"""What the scripts of the peers share: the shapes, and the file that bench/report.py reads.

Each script writes one file and takes a word that leaves only the shapes with it in their name:

    python3 bench/peers/PEER.py FILE.json [WORD]

What it needs and cannot import is said, and it leaves without a file.
"""

import datetime
import json
import pathlib
import re
import sys

import registry

FILE = sys.argv[1]
WORD = sys.argv[2] if len(sys.argv) > 2 else ""
SHAPES = [shape for shape in registry.SHAPES.values() if WORD in shape["name"]]


def skip(reason):
    print(f"SKIPPED: {pathlib.Path(sys.argv[0]).stem}: {reason}")
    sys.exit(0)


def driver():
    """The version of the NVIDIA driver, found as tests/gpu/machine.rs finds it for ours: the two are compared."""
    file = pathlib.Path("/proc/driver/nvidia/version")
    number = re.search(r"(?<!\S)\d\S*\.\S*", file.read_text()) if file.exists() else None
    return number[0] if number else "unknown"


class Results:
    """The figures of one peer or several, written after each, so that a run that is cut short has left what it had."""

    def __init__(self, version, gpu):
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self.header = {"version": version, "date": today, "gpu": gpu, "driver": driver()}
        self.figures = []

    def measure(self, who, shape, variant, of_pass, how, measured):
        """Adds what `measured` gives, in microseconds, or says what kept it from giving anything."""
        what = f"{who:24} {shape['name']:12} {variant:6} {of_pass}"
        try:
            microseconds = measured()
        except Exception as error:  # Out of memory, for one: the other shapes are still worth measuring.
            print(f"{'failed':>10}     {what}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            return
        print(f"{microseconds:10.1f} µs  {what}", flush=True)
        figure = {"shape": shape["name"], "variant": variant, "pass": of_pass, "how": how, "microseconds": microseconds}
        self.figures.append({"who": who, **figure})
        results = {"header": self.header, "figures": self.figures}
        pathlib.Path(FILE).write_text(json.dumps(results, indent=2) + "\n")

    def end(self):
        """Fails where nothing at all was measured: what is installed and does not run is not skipped."""
        if not self.figures:
            sys.exit("not one figure was measured")
