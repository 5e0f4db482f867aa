"""The results of one run of `bin/bench-gpu`: a folder of JSON files, ours and the peers'.

The floor of a pass is the larger of two times: what it must read and write at the bandwidth of bench/shapes.json, and
its exponentials at 16 a clock and multiprocessor.
"""

import datetime
import json
import sys

from peers.registry import REGISTRY, SHAPES

OURS = "ours"
RIVAL = "mamba_ssm"


def refuse(file, reason):
    sys.exit(f"REFUSED: {file}: {reason}")


def check(headers):
    """Refuses files that are not of one GPU, one driver, one version of ours and one day, or the next."""
    headers = dict(sorted(headers.items(), key=lambda named: named[1].get("who") != OURS))  # others are compared with ours
    for file, header in headers.items():
        for field in ("date", "gpu", "driver"):
            if field not in header:
                refuse(file, f"its header has no {field}")
    for field in ("gpu", "driver", "sha256"):
        values = {file: header[field] for file, header in headers.items() if field in header}
        for file, value in values.items():
            first = next(iter(values))
            if value != values[first]:
                refuse(file, f"its {field} is {value}, that of {first} is {values[first]}")
    dates = sorted((datetime.date.fromisoformat(header["date"]), file) for file, header in headers.items())
    (first, oldest), (last, newest) = dates[0], dates[-1]
    if (last - first).days > 1:
        refuse(oldest, f"it is of {first}, more than a day before {newest} of {last}")


class Run:
    """`header` is that of ours, or None where nothing of ours was measured; `note` what note.md says of the run."""

    def __init__(self, folder):
        results = {str(file): json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
        if results:
            check({file: of_file["header"] for file, of_file in results.items()})
        self.header, versions, self.figures, self.how = None, [], {}, {}
        for of_file in results.values():
            header = of_file["header"]
            if header.get("who") == OURS:
                self.header = header
            else:
                versions += header["version"].split(", ")
            for f in of_file["figures"]:
                who = f.get("who", OURS)
                self.figures[f["shape"], f["variant"], f["pass"], who] = f["microseconds"]
                self.how[who] = f["how"]
        self.versions = list(dict.fromkeys(versions))
        note = folder / "note.md"
        self.note = note.read_text().strip() if note.exists() else ""

    def time(self, shape, variant, of_pass, who=OURS):
        """µs. A backward pass of ours is the one that peers have: with the states that the forward pass kept."""
        if who == OURS and of_pass == "backward":
            of_pass = "backward from boundary states"
        return self.figures.get((shape, variant, of_pass, who))

    def time_from_inputs(self, shape, variant):
        """µs of the backward pass that has to find the states itself."""
        return self.figures.get((shape, variant, "backward", OURS))

    def quotient(self, time, by):
        """None where one is not known. What has not passed its tests is compared with nothing: it may be fast and wrong."""
        return time / by if time and by and self.header["tested"] else None

    def ratio(self, shape, variant, of_pass, who):
        """How many times as long as ours."""
        return self.quotient(self.time(shape, variant, of_pass, who), self.time(shape, variant, of_pass))

    def floor(self, shape, variant, of_pass):
        """µs."""
        rules = REGISTRY["floor"]
        rule = rules[of_pass]
        bytes_of_element = 2 if variant == "bf16" else 4
        batch, seq, dim, state = (SHAPES[shape][axis] for axis in ("batch", "seq", "dim", "state"))
        moved = bytes_of_element * batch * seq * (rule["sequences"] * dim + rule["projections"] * state)
        exponentials = rule["exponentials"] * batch * seq * dim * state
        clock = self.header["clock_mhz"] * 1e6
        a_second = self.header["multiprocessors"] * rules["exponentials_per_clock"] * clock
        return 1e6 * max(moved / rules["bytes_per_second"], exponentials / a_second)

    def peers(self, variant, of_pass):
        """Those who have a figure here: the rival, other kernels, the others, by their names."""
        found = {who for (_, v, p, who) in self.figures if (v, p) == (variant, of_pass) and who != OURS}
        return sorted(found, key=lambda who: (who != RIVAL, self.how[who] != "graph replay", who.lower()))

    def provenance(self):
        """The machine, and the run."""
        h = self.header
        tested = "the GPU tests have passed on these sources"
        if not h["tested"]:
            tested = "NOT COMPARED, for the GPU tests have not yet passed on these sources"
        return (
            f"{h['gpu']} ({h['multiprocessors']} multiprocessors, {h['clock_mhz']} MHz), driver {h['driver']}, {h['machine']}",
            f"{h['date']}, commit {h['version']}; {tested}",
        )
