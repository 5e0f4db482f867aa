"""Puts what `bin/bench-gpu` measured into one table and one picture.

    python3 bench/report.py FOLDER

reads FOLDER/*.json and writes FOLDER/table.md and FOLDER/times.svg. No library is needed. The floor of a pass is the
larger of two times: what it must read and write at the bandwidth of bench/shapes.json, and its exponentials at 16 a
clock and multiprocessor. Where the GPU tests have not passed on the very sources that were measured there are times, but
no ratios: nothing is faster that may be wrong.
"""

import json
import math
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])
REGISTRY = json.loads((pathlib.Path(__file__).resolve().parent / "shapes.json").read_text())
SHAPES = {shape["name"]: shape for shape in REGISTRY["shapes"]}
OURS = "ours"
RIVAL = "mamba_ssm"


def load():
    """The header of our run, the versions of the peers, and {(shape, variant, pass, who): (µs, how)}."""
    header, versions, figures = None, [], {}
    for file in sorted(FOLDER.glob("*.json")):
        results = json.loads(file.read_text())
        if results["header"].get("who") == OURS:
            header = results["header"]
        else:
            versions += results["header"]["version"].split(", ")
        for f in results["figures"]:
            key = (f["shape"], f["variant"], f["pass"], f.get("who", OURS))
            figures[key] = (f["microseconds"], f["how"])
    if header is None:
        print(f"SKIPPED: the table and the picture: {FOLDER} has no results of ours")
        sys.exit(0)
    return header, list(dict.fromkeys(versions)), figures


HEADER, VERSIONS, FIGURES = load()


def time(shape, variant, of_pass, who=OURS):
    return FIGURES.get((shape, variant, of_pass, who), (None, None))[0]


def floor(shape, variant, of_pass):
    """µs."""
    rules = REGISTRY["floor"]
    rule = rules[of_pass]
    bytes_of_element = 2 if variant == "bf16" else 4
    batch, seq, dim, state = (SHAPES[shape][axis] for axis in ("batch", "seq", "dim", "state"))
    moved = bytes_of_element * batch * seq * (rule["sequences"] * dim + rule["projections"] * state)
    exponentials = rule["exponentials"] * batch * seq * dim * state
    a_second = HEADER["multiprocessors"] * rules["exponentials_per_clock"] * HEADER["clock_mhz"] * 1e6
    return 1e6 * max(moved / rules["bytes_per_second"], exponentials / a_second)


def number(value):
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio):
    return "" if ratio is None or not HEADER["tested"] else f" ({ratio:.1f}×)"


def mean(ratios):
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def line(cells):
    return "| " + " | ".join(cells) + " |"


def peers(variant, of_pass):
    """Those who have a figure here, the rival first, the others by their name."""
    found = {who for (_, v, p, who) in FIGURES if (v, p) == (variant, of_pass) and who != OURS}
    return sorted(found, key=lambda who: (who != RIVAL, who))


def basis(of_pass):
    """What of ours peers are compared with: a backward pass by itself has the states that the forward pass kept."""
    return "backward from checkpoints" if of_pass == "backward" else of_pass


def pass_table(variant, of_pass):
    extra = ["from the inputs alone"] if of_pass == "backward" else []
    others = peers(variant, of_pass)
    head = ["shape (batch × seq × dim × state)", "floor", "ours", *extra, "share of the floor", *others]
    lines = [f"### {of_pass.capitalize()}, {variant}", "", line(head), line(["---"] * len(head))]
    ratios = {who: [] for who in others}
    for name, shape in SHAPES.items():
        ours, least = time(name, variant, basis(of_pass)), floor(name, variant, of_pass)
        size = " × ".join(str(shape[axis]) for axis in ("batch", "seq", "dim", "state"))
        cells = [f"{name} ({size})", number(least), number(ours)]
        cells += [number(time(name, variant, of_pass)) for _ in extra]
        cells.append("–" if ours is None else f"{100 * least / ours:.0f}%")
        for who in others:
            theirs = time(name, variant, of_pass, who)
            ratio = theirs / ours if theirs and ours else None
            ratios[who] += [ratio] if ratio else []
            cells.append(number(theirs) + times(ratio))
        lines.append(line(cells))
    if others and HEADER["tested"]:
        means = [f"{mean(ratios[who]):.1f}×" if ratios[who] else "–" for who in others]
        lines.append(line(["geometric mean", "", "", *[""] * len(extra), "", *means]))
    return lines


def variant_table():
    """What a method, a feature or a larger state costs beside plain zoh in f32."""
    head = ["variant", "shape", "forward", "beside plain zoh", "backward", "beside plain zoh"]
    lines = ["### Methods, features, states (ours, f32)", "", line(head), line(["---"] * len(head))]
    for variant in REGISTRY["variants"]:
        for shape in variant.get("shapes", []):
            cells = [variant["name"], shape]
            for of_pass in ("forward", "backward"):
                taken, plain = time(shape, variant["name"], of_pass), time(shape, "f32", of_pass)
                cells += [number(taken), f"{taken / plain:.2f}×" if taken and plain else "–"]
            lines.append(line(cells))
    return lines


def call_table():
    """Whole calls, from and to memory of the host."""
    ways = ["pageable to pageable", "pageable to pinned", "pinned to pinned", "binary to binary"]
    rows = sorted({(shape, who) for (shape, _, p, who) in FIGURES if p in ways})
    if not rows:
        return []
    lines = ["### Whole calls from and to memory of the host, f32", "", line(["shape", "by", *ways])]
    lines.append(line(["---"] * (2 + len(ways))))
    for shape, who in rows:
        lines.append(line([shape, who, *(number(time(shape, "f32", way, who)) for way in ways)]))
    return lines


def both_table():
    """Frameworks that differentiate only whole programs."""
    others = peers("f32", "forward and backward")
    if not others:
        return []
    head = ["shape", "ours, forward + backward", *others]
    lines = ["### Forward and backward, f32", "", line(head), line(["---"] * len(head))]
    for name in SHAPES:
        parts = [time(name, "f32", of_pass) for of_pass in ("forward", "backward")]
        ours = sum(parts) if all(parts) else None
        cells = [name, number(ours)]
        for who in others:
            theirs = time(name, "f32", "forward and backward", who)
            cells.append(number(theirs) + times(theirs / ours if theirs and ours else None))
        lines.append(line(cells))
    return lines


def provenance():
    """The machine, and the run."""
    h = HEADER
    tested = "the GPU tests have passed on these sources"
    return (
        f"{h['gpu']} ({h['multiprocessors']} multiprocessors, {h['clock_mhz']} MHz), driver {h['driver']}, {h['machine']}",
        f"{h['date']}, commit {h['version']}; "
        f"{tested if h['tested'] else 'NO RATIOS, for not yet ' + tested.replace('have passed', 'passed')}",
    )


def table():
    tables = [pass_table(v, p) for v in ("f32", "bf16") for p in ("forward", "backward")]
    tables += [both_table(), variant_table(), call_table()]
    words = (
        "Microseconds, medians. Ours, mamba_ssm and Triton: kernels by graph replay. PyTorch and JAX: a compiled or eager "
        "call that is waited for. In brackets, how many times as long as ours."
    )
    parts = ["## Times on a GPU", "", "; ".join(provenance()) + ".", "", words, "Peers: " + (", ".join(VERSIONS) or "none") + "."]
    for lines in filter(None, tables):
        parts += ["", *lines]
    return "\n".join(parts) + "\n"


# --- The picture --------------------------------------------------------------------------------------------

COLOURS = ["#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"]
WIDTH, PANEL, LEFT, TOP, LEGEND = 1000, 330, 60, 75, 170


def points(of_pass):
    """{who: [(index of the shape, time over floor)]}."""
    found = {}
    for who in [OURS, *peers("f32", of_pass)]:
        for index, name in enumerate(SHAPES):
            taken = time(name, "f32", basis(of_pass) if who == OURS else of_pass, who)
            if taken:
                found.setdefault(who, []).append((index, taken / floor(name, "f32", of_pass)))
    return found


def panel(of_pass, top, colours):
    found = points(of_pass)
    highest = max((ratio for series in found.values() for _, ratio in series), default=10)
    decades = max(1, math.ceil(math.log10(highest)))
    inner, height = WIDTH - LEFT - LEGEND, PANEL - 80
    x = lambda index: LEFT + inner * (index + 0.5) / len(SHAPES)
    y = lambda ratio: top + height * (1 - math.log10(max(ratio, 1)) / decades)
    svg = [f'<text x="{LEFT}" y="{top - 12}" font-weight="bold">{of_pass.capitalize()}, f32: time over the floor</text>']
    for decade in range(decades + 1):
        at = y(10**decade)
        svg.append(f'<line x1="{LEFT}" x2="{LEFT + inner}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10**decade}</text>')
    for index, name in enumerate(SHAPES):
        svg.append(f'<text x="{x(index):.1f}" y="{top + height + 20}" text-anchor="middle">{name}</text>')
    for who, series in found.items():
        corners = " ".join(f"{x(index):.1f},{y(ratio):.1f}" for index, ratio in series)
        width = 2.5 if who == OURS else 1
        svg.append(f'<polyline points="{corners}" fill="none" stroke="{colours[who]}" stroke-width="{width}"/>')
        for index, ratio in series:
            words = f"{who}, {list(SHAPES)[index]}: {ratio:.1f} times the floor"
            dot = f'<circle cx="{x(index):.1f}" cy="{y(ratio):.1f}" r="4" fill="{colours[who]}">'
            svg.append(f"{dot}<title>{words}</title></circle>")
    return svg


def picture():
    everybody = list(dict.fromkeys(who for of_pass in ("forward", "backward") for who in points(of_pass)))
    colours = {who: COLOURS[index % len(COLOURS)] for index, who in enumerate(everybody)}
    height = TOP + 2 * PANEL
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for line, words in enumerate(provenance()):  # in one line they are too wide
        svg.append(f'<text x="{LEFT}" y="{20 + 16 * line}" fill="#555">{words}</text>')
    svg += panel("forward", TOP, colours) + panel("backward", TOP + PANEL, colours)
    for index, who in enumerate(everybody):
        at, left = TOP + 10 + 20 * index, WIDTH - LEGEND + 15
        svg.append(f'<circle cx="{left}" cy="{at - 4}" r="4" fill="{colours[who]}"/>')
        svg.append(f'<text x="{left + 12}" y="{at}">{who}</text>')
    return "\n".join([*svg, "</svg>"]) + "\n"


(FOLDER / "table.md").write_text(table())
(FOLDER / "times.svg").write_text(picture())
print(f"{FOLDER}/table.md, {FOLDER}/times.svg")
