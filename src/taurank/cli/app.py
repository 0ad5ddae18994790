"""``taurank`` and its commands.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from taurank import __version__
from taurank.cli import curves, data, log, model, propensity, server
from taurank.cli.arguments import read_columns
from taurank.cli.options import READS, Columns, Group, OutFolder, Seed, Threads, TimeZone
from taurank.cli.terminal import EXTRAS, be_quiet, note, say

PACKAGES = ("numpy", "numba", "llvmlite", "scipy", "pandas", "pyarrow", "duckdb", "narwhals", "safetensors", "typer")

app = Group(
    "Rank items by the causal effect of recommending them.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
)
for command in (
    model.fit, model.update, model.evaluate, curves.curve, model.recommend, curves.spend, model.tune, server.serve
):  # fmt: skip
    app.command(command.__name__)(command)


@app.command("pilot")
def pilot(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="TOML file that names the tables, or a folder with impressions and purchases."
        ),
        READS,
    ],
    out: OutFolder,
    columns: Columns = None,
    timezone: TimeZone = None,
    threads: Threads = None,
) -> None:
    """Compare rankings on a shop's tables and say which one to show.

    Builds the log, estimates propensities, fits several learners to the earlier weeks and measures them, beside
    today's ranking, on the later ones. Writes report.html, and the chosen model with its recommendations. The same
    command continues an interrupted run.
    """
    from taurank import report
    from taurank.pilot import run

    report.require()
    more = {"columns": read_columns(columns), "log": {"timezone": timezone} if timezone else {}}
    result = run(plan, out, more=more, threads=threads, show_progress=True)
    say(str(result))
    note(f"Wrote {out / 'report.html'}.")


@app.command("demo")
def demo(seed: Seed = 0, threads: Threads = None) -> None:
    """Compare four rankings on Dunnhumby shopping data."""
    from taurank.cli.demo import run

    run(seed, threads)


@app.command("doctor")
def doctor() -> None:
    """Show versions, extras and the cache of compiled code."""
    from numba.core.caching import FunctionCache

    from taurank._threads import worker_count
    from taurank.data.ids import Ids  # any function of ours: its module's folder is where the cache goes first

    rows = [("taurank", __version__), ("Python", f"{platform.python_version()} on {platform.platform()}")]
    for name in PACKAGES:
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, "missing"))
    rows.append(("threads", str(worker_count(None))))
    for extra in dict.fromkeys(EXTRAS.values()):
        missing = [name for name, one in EXTRAS.items() if one == extra and find_spec(name) is None]
        state = "installed" if not missing else f'{", ".join(missing)} missing: pip install "taurank[{extra}]"'
        rows.append((f"extra {extra}", state))
    try:
        cache = f"cached in {FunctionCache(Ids.__len__).cache_path}"
    except RuntimeError:
        cache = "not cached: set NUMBA_CACHE_DIR to a writable folder, or every process compiles for about 20 s"
    rows.append(("compiled code", cache))
    width = max(len(name) for name, _ in rows)
    say("\n".join(f"{name:<{width}}  {text}" for name, text in rows))


for group in (log, propensity, data, server):
    app.add_typer(group.group, name=group.__name__.rpartition(".")[2])
for plugin in sorted(entry_points(group="taurank.commands")):
    app.command(plugin.name)(plugin.load())  # of an application on top of the library, such as taurank_paper


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"taurank {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
) -> None:
    be_quiet(quiet)
