"""The tables of a run, in Markdown: what the README shows, and the rest."""

import math
import textwrap

from peers.registry import REGISTRY, SHAPES
from results import OURS

NOTHING = "–"


def number(value):
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio, digits=1):
    if ratio is None:
        return NOTHING
    return f"{ratio:.{digits}f}×" if ratio < 10 else f"{ratio:.0f}×"


def percent(share):
    return NOTHING if share is None else f"{100 * share:.0f}%"


def cell(microseconds, beside):
    return number(microseconds) if beside == NOTHING else f"{number(microseconds)} ({beside})"


def mean(values):
    """The geometric mean; of some of the shapes there is none, for it could not be compared."""
    return None if None in values else math.exp(sum(map(math.log, values)) / len(values))


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def ours_column(run, variant, of_pass):
    """Times and shares of the floor."""
    taken = [run.time(name, variant, of_pass) for name in SHAPES]
    shares = [run.quotient(run.floor(name, variant, of_pass), t) for name, t in zip(SHAPES, taken)]
    return [f"{of_pass}, {variant}", *map(cell, taken, map(percent, shares)), percent(mean(shares))]


def peer_column(run, variant, of_pass, who):
    """Times and ratios."""
    taken = [run.time(name, variant, of_pass, who) for name in SHAPES]
    ratios = [run.ratio(name, variant, of_pass, who) for name in SHAPES]
    return [who, *map(cell, taken, map(times, ratios)), times(mean(ratios))]


def comparison(run, first_columns, passes):
    """A row for every shape; of every pass, ours and all who have a figure of it."""
    columns = list(first_columns)
    for variant, of_pass in passes:
        columns.append(ours_column(run, variant, of_pass))
        columns += [peer_column(run, variant, of_pass, who) for who in run.peers(variant, of_pass)]
    head, *rows = zip(*columns)
    return table(head, rows)


def comparisons(run):
    sizes = [" × ".join(str(shape[axis]) for axis in ("batch", "seq", "dim")) for shape in SHAPES.values()]
    sized = ["batch × seq × dim", *(f"{name} {size}" for name, size in zip(SHAPES, sizes)), "geometric mean"]
    floors = ["floor", *(number(run.floor(name, "f32", "forward")) for name in SHAPES), ""]
    yield comparison(run, [sized, floors], [("f32", "forward")])
    names = ["", *SHAPES, "geometric mean"]
    yield comparison(run, [names], [("bf16", "forward"), ("f32", "backward"), ("bf16", "backward")])


def variant_table(run):
    """What a method, a feature or a larger state costs beside plain zoh in f32."""
    variants = [variant for variant in REGISTRY["variants"] if "shapes" in variant]
    shapes = [name for name in SHAPES if any(name in variant["shapes"] for variant in variants)]
    columns = [(shape, of_pass) for shape in shapes for of_pass in ("forward", "backward")]

    def beside_plain(variant, shape, of_pass):
        taken, plain = (run.time(shape, name, of_pass) for name in (variant["name"], "f32"))
        return cell(taken, times(run.quotient(taken, plain), digits=2))

    rows = [[variant["name"], *(beside_plain(variant, *column) for column in columns)] for variant in variants]
    return table(["beside plain zoh, f32", *(f"{shape}, {of_pass}" for shape, of_pass in columns)], rows)


def words(run):
    """What the numbers are, in two paragraphs."""
    states = " or ".join(str(state) for state in sorted({shape["state"] for shape in SHAPES.values()}))
    ways = {"graph replay": [OURS], "call": []}
    for who in run.peers("f32", "forward"):
        ways[run.how[who]].append(who)
    yield f"{'; '.join(run.provenance())}. Peers: {', '.join(run.versions) or 'none'}."
    yield (
        f"Microseconds, medians, zoh with {states} states; backward with the states that the forward pass kept. "
        f"Kernels by replay of CUDA graphs: {', '.join(ways['graph replay'])}; "
        f"calls that are waited for: {', '.join(ways['call']) or 'none'}. "
        "In brackets, of ours the share of the time that is the floor of this pass and type, of the others how many times "
        f"as long as ours they take. {NOTHING}: not measured. {run.note}"
    )


def summary(run):
    """What the README shows."""
    paragraphs = [textwrap.fill(text, 125, break_on_hyphens=False) for text in words(run)]
    return "\n\n".join([*paragraphs, *comparisons(run), variant_table(run)])


def whole_program_table(run):
    """Frameworks that differentiate only whole programs; and our backward pass where nothing was kept for it."""
    others = run.peers("f32", "forward and backward")
    rows = []
    for name in SHAPES:
        alone = {variant: run.time_from_inputs(name, variant) for variant in ("f32", "bf16")}
        parts = [run.time(name, "f32", "forward"), alone["f32"]]
        ours = sum(parts) if all(parts) else None
        cells = [name, *map(number, alone.values()), number(ours)]
        for who in others:
            theirs = run.time(name, "f32", "forward and backward", who)
            cells.append(cell(theirs, times(run.quotient(theirs, ours))))
        rows.append(cells)
    alone = [f"backward from the inputs alone, {variant}" for variant in ("f32", "bf16")]
    return table(["", *alone, "forward and it, f32", *others], rows)


def call_table(run):
    """Whole calls, from and to memory of the host."""
    ways = ["pageable to pageable", "pageable to pinned", "pinned to pinned", "binary to binary"]
    callers = sorted({(shape, who) for (shape, _, of_pass, who) in run.figures if of_pass in ways})
    rows = [[shape, who, *(number(run.time(shape, "f32", way, who)) for way in ways)] for shape, who in callers]
    return table(["calls, f32", "by", *ways], rows) if rows else ""


def everything(run):
    parts = ["## Times on a GPU", summary(run), whole_program_table(run), call_table(run)]
    return "\n\n".join(filter(None, parts)) + "\n"
