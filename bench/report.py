"""Puts what `bin/bench-gpu` measured into one table and one picture.

    python3 bench/report.py FOLDER

reads FOLDER/*.json and writes FOLDER/table.md and FOLDER/times.svg. No library is needed. Results of several machines,
drivers or days are refused. Where the GPU tests have not passed on the very sources that were measured there are times,
and no comparison: nothing is faster that may be wrong. FOLDER/note.md, where there is one, is said in the table.
"""

import pathlib
import sys

from picture import picture
from results import Run
from tables import everything

if len(sys.argv) != 2:
    sys.exit("usage: python3 bench/report.py FOLDER")
folder = pathlib.Path(sys.argv[1])
run = Run(folder)
if run.header is None:
    print(f"SKIPPED: the table and the picture: {folder} has no results of ours")
    sys.exit(0)
(folder / "table.md").write_text(everything(run))
if run.header["tested"]:
    (folder / "times.svg").write_text(picture(run))
    print(f"{folder}/table.md, {folder}/times.svg")
else:
    print(f"{folder}/table.md; no picture of what has not passed its tests")
