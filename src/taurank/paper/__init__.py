"""The paper's experiments: every table and figure of its section 5, from TOML files to a report.

``plan`` reads the files, ``scenes`` draws the data, ``fits`` trains and measures, ``experiments`` says which fits
make which table, ``tuning`` searches hyper-parameters, ``runner`` runs it all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def run(
    names: str | Iterable[str] = (),
    preset: str = "quick",
    source: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "reproduce",
    threads: int | None = None,
    show_progress: bool | None = None,
    items: str | None = None,
) -> Path:
    """Run experiments, write their tables and the report into the folder ``out``, and give that folder.

    ``names`` are names of experiments or paths of TOML files; none means all eight. ``preset`` is "smoke" (small
    synthetic worlds), "quick" or "full" (with a search over hyper-parameters). ``source`` is a folder with the
    original CSV files. What is measured is kept in ``out/cache``: a run that was killed goes on where it stopped.
    ``items`` "category" or "product" makes that half alone; both halves follow from the same folder without it.
    ``show_progress`` None shows a bar on a terminal and plain lines elsewhere; False shows nothing.
    """
    from taurank.paper.runs import runner

    return runner.run(names, preset, source, out, threads, show_progress, items)
