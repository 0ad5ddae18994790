"""``taurank`` and its commands.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from taurank import __version__
from taurank.cli import data, doctor, log, model, pilot, propensity, server
from taurank.cli.options import Group, Seed, Threads
from taurank.cli.terminal import be_quiet, say

app = Group(
    "Rank items by the causal effect of recommending them.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
)
app.command("fit")(model.fit)
app.command("update")(model.update)
app.command("evaluate")(model.evaluate)
app.command("recommend")(model.recommend)
app.command("tune")(model.tune)
app.command("pilot")(pilot.pilot)
app.command("serve")(server.serve)
app.add_typer(log.group, name="log")
app.add_typer(propensity.group, name="propensity")
app.add_typer(data.group, name="data")
app.add_typer(server.group, name="server")
app.command("doctor")(doctor.doctor)
for plugin in sorted(entry_points(group="taurank.commands")):
    app.command(plugin.name)(plugin.load())  # of an application on top of the library, such as taurank_paper


@app.command("demo")
def demo(seed: Seed = 0, threads: Threads = None) -> None:
    """Compare Popular, BPR and DLCE on Dunnhumby shopping data."""
    from taurank.cli.demo import run

    run(seed, threads)


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
