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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taurank import __version__
from taurank.cli import serve
from taurank.cli.arguments import (
    Estimator,
    make_learner,
    read_column,
    read_exclusion,
    read_gains,
    read_pairs,
    read_period,
    read_weight,
)
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.worlds.world import World


def _group(text: str) -> typer.Typer:
    return typer.Typer(
        help=text, no_args_is_help=True, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
    )


app = _group("Rank items by the causal effect of recommending them.")
data = _group("Make logs to try things on, with the truth beside them.")
log = _group("Build and check logs.")
propensity = _group("Estimate and examine the probabilities of being recommended.")
app.add_typer(data, name="data")
app.add_typer(log, name="log")
app.add_typer(propensity, name="propensity")
app.add_typer(serve.group, name="serve")


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


class Output(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


class Preset(StrEnum):
    smoke = "smoke"
    quick = "quick"
    full = "full"


class Unknown(StrEnum):
    refuse = "raise"
    warn = "warn"
    popular = "popular"


Seed = Annotated[int, typer.Option(help="Same seed, same bits.", min=0)]
Threads = Annotated[int | None, typer.Option(help="Threads to use; the result does not depend on it.", min=1)]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
OutFile = Annotated[Path, typer.Option("--out", help="File to write, .parquet or .csv.")]
LearnerName = Annotated[str, typer.Argument(metavar="LEARNER", help="dlce, bpr, popular, …")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A hyper-parameter, for example --set cap=0.01; repeatable.")
]
TruthPath = Annotated[Path | None, typer.Option("--truth", help="The effects: user_id, item_id[, time], value.")]
Cap = Annotated[float | None, typer.Option(help="Cap of capped IPS.", min=0.0, max=1.0)]
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
def demo(seed: Seed = 0, threads: Threads = None) -> None:
    """Fit Popular, BPR and DLCE to Dunnhumby shopping data and show what they would cause."""
    from taurank.cli.demo import run

    run(seed, threads)


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
    from taurank.worlds import dunnhumby

    world = dunnhumby.world(items.value, source, read_weight(prior_weight))
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
    sample_seed: Annotated[int | None, typer.Option(help="Another draw from the world of --seed.", min=0)] = None,
    threads: Threads = None,
) -> None:
    """Draw a log from a made-up world: log.parquet, truth.parquet, world.json."""
    import numpy as np

    from taurank.worlds.world import World

    world = World.synthetic(users, items, np.random.SeedSequence(seed).spawn(2)[0])
    sample_seed = seed if sample_seed is None else sample_seed
    if propensity is Assignment.personalized:
        world = world.personalized(beta)
    _write_sample(world, out, times, sample_seed, threads, np.random.SeedSequence(sample_seed).spawn(2)[1])


@log.command("build")
def log_build(
    impressions: Annotated[Path, typer.Argument(help="user_id, item_id, timestamp[, propensity].")],
    outcomes: Annotated[Path, typer.Argument(help="user_id, item_id, timestamp[, propensity].")],
    out: OutFile,
    period: Annotated[str, typer.Option(help="day, week, or edges: 2024-01-01,2024-01-15,…")] = "day",
    window: Annotated[str | None, typer.Option(help='How long an impression counts, for example "3 days".')] = None,
    combine: Annotated[
        Combine, typer.Option(help="One propensity from several impressions of a cell.")
    ] = Combine.same,
    memory_limit: Annotated[str | None, typer.Option(help='For example "2GB".')] = None,
) -> None:
    """Make a log from a table of impressions and a table of outcomes."""
    from taurank.data.log import Log

    built = Log.from_events(
        impressions, outcomes, period=read_period(period), window=window, combine=combine.value,
        memory_limit=memory_limit,
    )  # fmt: skip
    built.write(out)
    typer.echo(str(built.summary))
    typer.echo(f"Wrote {built!r} to {out}.")


@log.command("check")
def log_check(path: LogPath) -> None:
    """Read a log, check every row, and say what is in it."""
    from taurank.data.log import Log

    for name, value in Log.read(path).describe().items():
        shown = f"{value:,}" if isinstance(value, int) else "not recorded" if value is None else f"{value:.6g}"
        typer.echo(f"{name:<28}{shown:>14}")


@propensity.command("estimate")
def propensity_estimate(path: LogPath, out: OutFile, seed: Seed = 0, threads: Threads = None) -> None:
    """Estimate the propensities of a log that does not record them."""
    from taurank._threads import using_threads
    from taurank.data.files import check_target
    from taurank.data.log import Log
    from taurank.estimation import propensity

    check_target(out)
    with using_threads(threads):
        estimated = propensity.estimate(Log.read(path), random_state=seed)
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
    from taurank.data.log import Log
    from taurank.estimation.propensity import diagnose

    diagnosis = diagnose(Log.read(path), cells=cells)
    if html is not None:
        diagnosis.write_html(html)
    typer.echo(_json(diagnosis.to_dict()) if format is Format.json else str(diagnosis))


@app.command("fit")
def fit(
    learner: LearnerName,
    path: LogPath,
    out: Annotated[Path, typer.Option("--out", help="File to write the model to.")],
    settings: Settings = None,
    validation: Annotated[
        Path | None, typer.Option(help="A log to stop early by; its estimator is --estimator.")
    ] = None,
    truth: TruthPath = None,
    estimator: Annotated[Estimator | None, typer.Option(help="What to measure validation by.")] = None,
    cap: Cap = None,
    metric: Annotated[str, typer.Option(help="What to stop early by.")] = "CDCG",
    patience: Annotated[int, typer.Option(help="Validations without a better one.", min=1)] = 10,
    checkpoint: Annotated[Path | None, typer.Option(help="File from which a killed fit goes on.")] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="How often it is written.", min=0)] = 5.0,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Fit a learner to a log and write the model."""
    from taurank.data.files import check_target
    from taurank.data.log import Log
    from taurank.learners.factorization import FactorLearner

    model = make_learner(learner, settings, seed, threads)
    check_target(out)
    if not isinstance(model, FactorLearner) and (validation or truth or checkpoint):
        raise InputError(f"{learner} learns in one pass: --validation, --truth and --checkpoint do not apply.")
    log = Log.read(path)
    if isinstance(model, FactorLearner):
        gains = read_gains(validation, truth, estimator, cap) if validation or truth else None
        model.fit(log, gains, metric, patience, checkpoint=checkpoint, checkpoint_minutes=checkpoint_minutes)
    else:
        model.fit(log)
    model.save(out)
    typer.echo(f"Wrote {type(model).__name__}, fitted to {log!r}, to {out}.")


@app.command("evaluate")
def evaluate(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL_OR_SCORES", help="A model, a .npy array, or user_id,item_id,score."),
    ],
    path: LogPath,
    truth: TruthPath = None,
    estimator: Annotated[
        Estimator | None, typer.Option(help="What to measure by: truth if given, else ips or capped-ips.")
    ] = None,
    cap: Cap = None,
    metrics: Annotated[str, typer.Option(help="Comma-separated.")] = "CP@10,CP@100,CDCG,CAR",
    unit: Annotated[str, typer.Option(help="What a time is, in sentences.")] = "time",
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    format: Annotated[Output, typer.Option(help="How to print it.")] = Output.table,
    threads: Threads = None,
) -> None:
    """Measure a ranking by the truth, or by what a log allows to estimate, with intervals."""
    import warnings

    from taurank.cli.arguments import read_ranker
    from taurank.evaluation.evaluate import evaluate as measure

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table says it
        gains = read_gains(path, truth, estimator, cap)
        result = measure(read_ranker(model), gains, metrics.split(","), unit=unit, threads=threads)
    frame = result.to_frame(level)
    if format is Output.csv:
        typer.echo(frame.to_csv(index=False), nl=False)
    elif format is Output.json:
        typer.echo(_json({"gains": gains.name, "metrics": json.loads(frame.to_json(orient="records"))}))
    else:
        typer.echo(f"measured by: {gains.name}\n{result}")


@app.command("recommend")
def recommend(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file that fit wrote.")],
    out: OutFile,
    k: Annotated[int, typer.Option(help="Items per user.", min=1)] = 10,
    users: Annotated[Path | None, typer.Option(help="A table with user_id; else all users.")] = None,
    candidates: Annotated[Path | None, typer.Option(help="A table with item_id: the only items.")] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="A log (what was bought), or a table with item_id[, user_id].")
    ] = None,
    on_unknown: Annotated[Unknown, typer.Option(help="What if a user was not in the log.")] = Unknown.refuse,
    threads: Threads = None,
) -> None:
    """Write the best items of each user: user_id, item_id, score, rank."""
    from taurank.learners import load

    loaded = load(model)
    rows = loaded.write_recommendations(
        out, read_column(users, "user_id"), k, read_column(candidates, "item_id"), read_exclusion(exclude),
        on_unknown.value, threads,
    )  # fmt: skip
    typer.echo(f"Wrote {rows:,} recommendations to {out}.")


@app.command("tune")
def tune(
    learner: LearnerName,
    path: LogPath,
    validation: Annotated[Path, typer.Option(help="A log to measure trials by.")],
    truth: TruthPath = None,
    estimator: Annotated[Estimator | None, typer.Option(help="What to measure trials by.")] = None,
    cap: Cap = None,
    metric: Annotated[str, typer.Option(help="What to search for.")] = "CDCG",
    trials: Annotated[int, typer.Option(help="Settings to try.", min=1)] = 20,
    settings: Settings = None,
    search: Annotated[
        list[str] | None, typer.Option(help="Values to try, for example --search cap=0.01,0.1; repeatable.")
    ] = None,
    journal: Annotated[Path | None, typer.Option(help="File from which a killed search goes on.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    html: Annotated[Path | None, typer.Option(help="Write a page with a chart to this file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the best hyper-parameters, as JSON.")] = None,
    seed: Seed = 0,
) -> None:
    """Search a learner's hyper-parameters."""
    from taurank.data.files import atomic_path, check_target
    from taurank.data.log import Log
    from taurank.tuning import tune as search_for

    for target in (journal, html, out):
        if target is not None:
            check_target(target)
    space = {name: value if isinstance(value, list) else [value] for name, value in read_pairs(search).items()}
    result = search_for(
        learner.lower(), Log.read(path), read_gains(validation, truth, estimator, cap), metric=metric,
        trials=trials, space=space or None, fixed=read_pairs(settings), journal=journal, jobs=jobs,
        random_state=seed,
    )  # fmt: skip
    typer.echo(str(result))
    if html is not None:
        result.write_html(html)
    if out is not None:
        with atomic_path(out) as temporary:
            temporary.write_text(_json({"learner": learner, metric: result.value, "best": result.best}) + "\n")


@app.command("reproduce")
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="statistics, comparison, car, capping, …; or a TOML file. All."),
    ] = None,
    preset: Annotated[
        Preset, typer.Option(help="How much: two minutes, an hour, or the paper's tuning.")
    ] = Preset.quick,
    source: Annotated[
        Path | None, typer.Option(help="Folder with the original CSV files; else the installed package.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(help="category or product: that half alone. Both.", show_default=False)
    ] = None,
    out: OutFolder = Path("out/reproduce"),
    threads: Threads = None,
) -> None:
    """Make every table and figure of the paper, and a verdict on every claim."""
    from taurank.paper import run

    folder = run(names or (), preset.value, source, out, threads=threads, items=items)
    typer.echo(f"Wrote {folder / 'report.html'}.")


def _write_sample(
    world: World, out: Path, times: int, seed: int, threads: int | None, random_state: Any = None
) -> None:
    from taurank.data.files import atomic_path

    sample = world.sample(times, seed if random_state is None else random_state, threads)
    if not len(sample.log):
        raise InputError("nothing was recommended or bought in this small sample; draw more times.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{out}' cannot be made a folder: {error.strerror}.") from error
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
    except MemoryError:
        typer.echo("taurank: there is not enough memory for this size.", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
