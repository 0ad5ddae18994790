"""The command line: one short function per command.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once. Bad input is one sentence
on standard error and exit code 2.
"""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from taurank import __version__
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.world import World


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


app = _group("Rank items by the causal effect of recommending them.")
data = _group("Make logs to try things on, with the truth beside them.")
log = _group("Build and check logs.")
propensity = _group("Estimate and examine the probabilities of being recommended.")
app.add_typer(data, name="data")
app.add_typer(log, name="log")
app.add_typer(propensity, name="propensity")


class Items(StrEnum):
    category = "category"
    product = "product"


class Assignment(StrEnum):
    original = "original"
    personalized = "personalized"


class Combine(StrEnum):
    same = "same"
    any = "any"
    first = "first"
    max = "max"


class Format(StrEnum):
    table = "table"
    json = "json"


Seed = Annotated[int, typer.Option(help="Same seed, same bits.", min=0)]
Threads = Annotated[int | None, typer.Option(help="Threads to use; the result does not depend on it.", min=1)]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
OutFile = Annotated[Path, typer.Option("--out", help="File to write, .parquet or .csv.")]
LogPath = Annotated[Path, typer.Argument(metavar="LOG", help="A Parquet or CSV file, a glob or a folder.")]


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"taurank {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo() -> None:
    """Build the Dunnhumby worlds and show their statistics beside the paper's."""
    from taurank.demo import run

    run()


@data.command("dunnhumby")
def data_dunnhumby(
    out: OutFolder,
    items: Annotated[Items, typer.Option(help="What an item is.")] = Items.category,
    propensity: Annotated[Assignment, typer.Option(help="How items are recommended.")] = Assignment.original,
    beta: Annotated[float, typer.Option(help="Unevenness of personalized propensities.")] = 2.0,
    times: Annotated[int, typer.Option(help="Weeks to draw.", min=1)] = 10,
    prior_weight: Annotated[
        str | None, typer.Option(help="Weight of the prior, or 'tune'; the paper's by default.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Folder with the original CSV files; else the installed package.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Draw a log from the Complete Journey's shopping data: log.parquet, truth.parquet, world.json."""
    from taurank import dunnhumby

    world = dunnhumby.world(items.value, source, _weight(prior_weight))
    if propensity is Assignment.personalized:
        world = world.personalized(beta)
    _write_sample(world, out, times, seed, threads)


@data.command("synthetic")
def data_synthetic(
    out: OutFolder,
    users: Annotated[int, typer.Option(help="Number of users.", min=1)] = 1000,
    items: Annotated[int, typer.Option(help="Number of items.", min=1)] = 500,
    times: Annotated[int, typer.Option(help="Times to draw.", min=1)] = 10,
    propensity: Annotated[Assignment, typer.Option(help="How items are recommended.")] = Assignment.original,
    beta: Annotated[float, typer.Option(help="Unevenness of personalized propensities.")] = 2.0,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Draw a log from a made-up world: log.parquet, truth.parquet, world.json."""
    import numpy as np

    from taurank.world import World

    world_seed, seed_of_sample = np.random.SeedSequence(seed).spawn(2)
    world = World.synthetic(users, items, world_seed)
    if propensity is Assignment.personalized:
        world = world.personalized(beta)
    _write_sample(world, out, times, seed, threads, seed_of_sample)


@log.command("build")
def log_build(
    impressions: Annotated[Path, typer.Argument(help="user_id, item_id, timestamp[, propensity].")],
    outcomes: Annotated[Path, typer.Argument(help="user_id, item_id, timestamp[, propensity].")],
    out: OutFile,
    period: Annotated[str, typer.Option(help="day, week, or edges: 2024-01-01,2024-01-15,…")] = "week",
    window: Annotated[
        str | None, typer.Option(help='How long an impression counts, for example "3 days".')
    ] = None,
    combine: Annotated[
        Combine, typer.Option(help="One propensity from several impressions of a cell.")
    ] = Combine.same,
    memory_limit: Annotated[str | None, typer.Option(help='For example "2GB".')] = None,
) -> None:
    """Make a log from a table of impressions and a table of outcomes."""
    from taurank.log import Log

    built = Log.from_events(
        impressions, outcomes, period=_period(period), window=window, combine=combine.value,
        memory_limit=memory_limit,
    )  # fmt: skip
    built.write(out)
    typer.echo(str(built.summary))
    typer.echo(f"Wrote {built!r} to {out}.")


@log.command("check")
def log_check(path: LogPath) -> None:
    """Read a log, check every row, and say what is in it."""
    from taurank.log import Log

    for name, value in Log.read(path).describe().items():
        shown = (
            f"{value:,}" if isinstance(value, int) else "not recorded" if value is None else f"{value:.6g}"
        )
        typer.echo(f"{name:<28}{shown:>14}")


@propensity.command("estimate")
def propensity_estimate(path: LogPath, out: OutFile, seed: Seed = 0, threads: Threads = None) -> None:
    """Estimate the propensities of a log that does not record them."""
    from taurank import propensity
    from taurank.log import Log

    estimated = propensity.estimate(Log.read(path), random_state=seed, threads=threads)
    estimated.write(out)
    typer.echo(f"Wrote {estimated!r} to {out}.")


@propensity.command("diagnose")
def propensity_diagnose(
    path: LogPath,
    cells: Annotated[
        Path | None, typer.Option(help="Propensities of cells: user_id, item_id[, time], propensity.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts to this file.")] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.table,
) -> None:
    """Say what a log's propensities allow to be estimated, and what not."""
    from taurank import propensity
    from taurank.log import Log

    diagnosis = propensity.diagnose(Log.read(path), cells=cells)
    if html is not None:
        diagnosis.write_html(html)
    typer.echo(_json(diagnosis.to_dict()) if format is Format.json else str(diagnosis))


def _weight(text: str | None) -> float | Literal["tune"] | None:
    if text is None or text == "tune":
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"--prior-weight is a number or 'tune', not '{text}'.") from error


def _period(text: str) -> str | list[str]:
    return [edge.strip() for edge in text.split(",")] if "," in text else text


def _write_sample(
    world: World, out: Path, times: int, seed: int, threads: int | None, random_state: Any = None
) -> None:
    from taurank.tables import atomic_path

    sample = world.sample(times, seed if random_state is None else random_state, threads)
    out.mkdir(parents=True, exist_ok=True)
    sample.log.write(out / "log.parquet")
    sample.truth.write(out / "truth.parquet")
    made = {
        "taurank": __version__, "origin": dict(world.origin), "times": times, "seed": seed,
        "rows": len(sample.log), "effects": len(sample.truth), **world.describe().to_dict("records")[0],
    }  # fmt: skip
    with atomic_path(out / "world.json") as path:
        path.write_text(_json(made) + "\n")
    typer.echo(f"Wrote {sample.log!r} and its truth to {out}.")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def main() -> None:
    """Run the command line; bad input becomes one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        typer.echo(f"taurank: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
