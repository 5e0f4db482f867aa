"""The picture of a run: time over the floor, for each shape and each who has a figure."""

import math

from peers.registry import SHAPES
from results import OURS

COLOURS = ["#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"]
WIDTH, PANEL, LEFT, TOP, LEGEND = 1000, 330, 60, 75, 170


def points(run, of_pass):
    """{who: [(index of the shape, time over floor)]}."""
    found = {}
    for who in [OURS, *run.peers("f32", of_pass)]:
        for index, name in enumerate(SHAPES):
            taken = run.time(name, "f32", of_pass, who)
            if taken:
                found.setdefault(who, []).append((index, taken / run.floor(name, "f32", of_pass)))
    return found


def panel(run, of_pass, top, colours):
    found = points(run, of_pass)
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


def picture(run):
    everybody = list(dict.fromkeys(who for of_pass in ("forward", "backward") for who in points(run, of_pass)))
    colours = {who: COLOURS[index % len(COLOURS)] for index, who in enumerate(everybody)}
    height = TOP + 2 * PANEL
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for line, words in enumerate(run.provenance()):  # in one line they are too wide
        svg.append(f'<text x="{LEFT}" y="{20 + 16 * line}" fill="#555">{words}</text>')
    svg += panel(run, "forward", TOP, colours) + panel(run, "backward", TOP + PANEL, colours)
    for index, who in enumerate(everybody):
        at, left = TOP + 10 + 20 * index, WIDTH - LEGEND + 15
        svg.append(f'<circle cx="{left}" cy="{at - 4}" r="4" fill="{colours[who]}"/>')
        svg.append(f'<text x="{left + 12}" y="{at}">{who}</text>')
    return "\n".join([*svg, "</svg>"]) + "\n"
