"""Puts the times of a run into the README: its tables, between the marks there, and docs/images/times.svg.

    python3 bench/publish.py FOLDER     the results of `bin/bench-gpu` in FOLDER, which replace those in bench/published
    python3 bench/publish.py            those in bench/published again
    python3 bench/publish.py --check    fails where README or picture are not what bench/published gives
"""

import pathlib
import sys

from picture import picture
from results import Run, refuse
from tables import summary

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "bench" / "published"
README = ROOT / "README.md"
MARKS = ("<!-- by bench/publish.py -->\n", "<!-- end -->\n")


def results_of(folder):
    run = Run(folder)
    return run if run.header else refuse(folder, "there are no results of ours")


def made(run):
    """{file: what is to stand in it}."""
    before, _, rest = README.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        refuse(README, f"it has not {' and then '.join(map(repr, MARKS))}")
    tables = f"{before}{MARKS[0]}\n{summary(run)}\n\n{MARKS[1]}{after}"
    return {README: tables, ROOT / "docs" / "images" / "times.svg": picture(run)}


def main(arguments):
    if arguments == ["--check"]:
        stale = [file for file, text in made(results_of(PUBLISHED)).items() if file.read_text() != text]
        if stale:
            names = ", ".join(str(file.relative_to(ROOT)) for file in stale)
            sys.exit(f"{names}: not what bench/published gives; `python3 bench/publish.py` writes it anew")
        return
    for folder in map(pathlib.Path, arguments):
        results_of(folder)
        texts = {file.name: file.read_text() for file in folder.glob("*.json")}
        for file in PUBLISHED.glob("*.json"):
            file.unlink()
        for name, text in texts.items():
            (PUBLISHED / name).write_text(text)
    for file, text in made(results_of(PUBLISHED)).items():
        file.write_text(text)


main(sys.argv[1:])
