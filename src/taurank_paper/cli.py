"""``taurank paper``: the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taurank.cli.arguments import import_from_here
from taurank.cli.options import OutFolder, Source, Threads
from taurank.cli.terminal import say


def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments or TOML files (default: all experiments)."),
    ] = None,
    preset: Annotated[
        Literal["smoke", "quick", "full", "authors"],
        typer.Option(
            help="smoke: synthetic data, a minute; quick: shopping data, under an hour; full: tune first, hours; "
            "authors: the authors' settings and updates, over an hour."
        ),
    ] = "quick",
    source: Source = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of all draws (default: that of the experiments).", show_default=False),
    ] = None,
    out: OutFolder = Path("out/reproduce"),
    threads: Threads = None,
) -> None:
    """Run the paper's experiments and write a report.

    The report has every table and figure of the paper, and a verdict on every claim.
    """
    from taurank import report

    report.require()  # before any import of what this extra installs, pydantic among it
    from taurank_paper.runner import run

    import_from_here()  # an experiment may name a learner of one's own
    folder = run(names or (), preset, source, out, threads=threads, seed=seed)
    say(f"Wrote {folder / 'report.html'}.")
