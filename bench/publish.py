"""Puts the times of a run into the README: its tables, between the marks there, and docs/images/times.svg.

    python3 bench/publish.py FOLDER     the results of `bin/bench-gpu` in FOLDER, and what its note.md says of the run,
                                        which replace those in bench/published
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
    if not run.header:
        refuse(folder, "there are no results of ours")
    if not run.header["tested"]:
        refuse(folder, "the GPU tests have not passed on the sources that were measured")
    return run


def made(run):
    """{file: what is to stand in it}."""
    before, _, rest = README.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        refuse(README, f"it has not {' and then '.join(map(repr, MARKS))}")
    tables = f"{before}{MARKS[0]}\n{summary(run)}\n\n{MARKS[1]}{after}"
    return {README: tables, ROOT / "docs" / "images" / "times.svg": picture(run)}


def replace(folder):
    """Puts the files of a folder in the place of those that are published, none of which may be missing."""
    files = {file.name: file.read_text() for file in [*folder.glob("*.json"), *folder.glob("note.md")]}
    for file in PUBLISHED.glob("*.json"):
        if file.name not in files:
            refuse(folder, f"it has no {file.name}, which is published; remove that if it is not to be")
    for file in PUBLISHED.iterdir():
        file.unlink()
    for name, text in files.items():
        (PUBLISHED / name).write_text(text)


def main(arguments):
    check = arguments == ["--check"]
    folder = pathlib.Path(arguments[0]) if arguments and not check else PUBLISHED
    if len(arguments) > 1 or not folder.is_dir():
        sys.exit(__doc__)
    texts = made(results_of(folder))
    if check:
        stale = [file for file, text in texts.items() if file.read_text() != text]
        if stale:
            names = ", ".join(str(file.relative_to(ROOT)) for file in stale)
            sys.exit(f"{names}: not what bench/published gives; `python3 bench/publish.py` writes it anew")
        return
    if folder != PUBLISHED:
        replace(folder)
    for file, text in texts.items():
        file.write_text(text)


main(sys.argv[1:])
