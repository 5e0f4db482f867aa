"""What the scripts of the peers share: the registry of shapes, and the file that bench/report.py reads.

Each script writes one file and takes a word that leaves only the shapes with it in their name:

    python3 bench/peers/PEER.py FILE.json [WORD]

What it needs and cannot import is said, and it leaves without a file.
"""

import json
import pathlib
import statistics
import sys
import time

REGISTRY = json.loads((pathlib.Path(__file__).resolve().parent.parent / "shapes.json").read_text())
FILE = sys.argv[1]
WORD = sys.argv[2] if len(sys.argv) > 2 else ""
SHAPES = [shape for shape in REGISTRY["shapes"] if WORD in shape["name"]]


def skip(peer, reason):
    print(f"SKIPPED: {peer}: {reason}")
    sys.exit(0)


class Results:
    """The figures of one peer or several, written after each, so that a run that is cut short has left what it had."""

    def __init__(self, version):
        self.version = version
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
        results = {"header": {"version": self.version}, "figures": self.figures}
        pathlib.Path(FILE).write_text(json.dumps(results, indent=2) + "\n")


def wall(call, wait, seconds=0.5):
    """The median time of a call that is waited for."""
    for _ in range(3):
        wait(call())
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        wait(call())
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)
