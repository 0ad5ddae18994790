"""``taurank fit | evaluate | recommend | tune``: from a log to a model, and from a model to what it is worth."""

from __future__ import annotations

import json
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from taurank.cli.arguments import (
    make_learner,
    read_column,
    read_exclusion,
    read_gains,
    read_learner,
    read_log,
    read_pairs,
    read_ranker,
    read_settings,
    split_commas,
    trusted,
)
from taurank.cli.options import (
    READS,
    WRITES,
    Cap,
    EstimatorName,
    LearnerName,
    LogPath,
    OutFile,
    Output,
    Seed,
    Settings,
    Threads,
    Trust,
    TruthPath,
    ValidationLog,
)
from taurank.cli.terminal import say, to_json
from taurank.errors import InputError, OverlapWarning, TrainingLogWarning


class Unknown(StrEnum):
    refuse = "raise"
    warn = "warn"
    popular = "popular"


class UnknownItems(StrEnum):
    refuse = "raise"
    warn = "warn"
    drop = "drop"


class Unlisted(StrEnum):
    last = "last"


def fit(
    learner: LearnerName,
    path: LogPath,
    out: Annotated[Path, typer.Option("--out", help="Model file to write."), WRITES],
    set_: Settings = None,
    settings: Annotated[
        Path | None, typer.Option(help="Hyper-parameters that tune --out wrote; --set overrides."), READS
    ] = None,
    validation: ValidationLog = None,
    truth: TruthPath = None,
    estimator: EstimatorName = None,
    cap: Cap = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Validation metric; repeatable, the first decides when to stop.  [default: CDCG]"),
    ] = None,
    patience: Annotated[int, typer.Option(help="Stop after this many checks without improvement.", min=1)] = 10,
    validate_every: Annotated[int | None, typer.Option(help="Epochs between checks.", min=1)] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint file, from which a killed fit resumes."), WRITES
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0)] = 5.0,
    seed: Annotated[int | None, typer.Option(help="Random seed (default: that of --settings, or 0).", min=0)] = None,
    threads: Threads = None,
) -> None:
    """Fit a learner to a log and save the model."""
    from taurank.data.log import Log

    chosen = {"random_state": 0, **read_settings(settings, learner)}
    if seed is not None:
        chosen["random_state"] = seed
    model = make_learner(learner, {**chosen, **read_pairs(set_)}, threads)
    log = Log.read(path)
    gains = read_gains(read_log(validation), truth, estimator, cap) if validation or truth else None
    model.fit(
        log, gains, split_commas(metric) or ["CDCG"], patience, checkpoint=checkpoint,
        validate_every=validate_every, checkpoint_minutes=checkpoint_minutes,
    )  # fmt: skip
    model.save(out)
    say(f"Wrote {type(model).__name__}, fitted to {log!r}, to {out}.")


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A model, a .npy array of scores, or a table: user_id, item_id, score or rank."
        ),
        READS,
    ],
    path: Annotated[
        Path | None, typer.Argument(metavar="LOG", help="Log to evaluate on; not needed with --truth."), READS
    ] = None,
    truth: TruthPath = None,
    estimator: EstimatorName = None,
    cap: Cap = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", "--metric", help="Metrics, comma-separated or repeated (default: those that fit the gains)."
        ),
    ] = None,
    unlisted: Annotated[
        Unlisted | None, typer.Option(help="Where to rank items that a table of rankings does not list.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Name of one time step in the output, for example week.")] = "time",
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    format: Annotated[Output, typer.Option(help="Output format.")] = Output.table,
    trust: Trust = None,
    threads: Threads = None,
) -> None:
    """Evaluate a ranking by true or estimated effects."""
    from taurank.evaluation.evaluate import evaluate as measure

    ranker = read_ranker(model, trusted(trust))
    gains = read_gains(read_log(path), truth, estimator, cap)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # every format has it
        if format is Output.table:
            warnings.simplefilter("ignore", TrainingLogWarning)  # the table has it
        result = measure(
            ranker, gains, split_commas(metrics) or None, unlisted="last" if unlisted else None, unit=unit,
            threads=threads,
        )  # fmt: skip
    frame = result.to_frame(level)
    if format is Output.csv:
        say(frame.to_csv(index=False), end="")
    elif format is Output.json:
        say(to_json({"gains": gains.name, "metrics": json.loads(frame.to_json(orient="records"))}))
    else:
        say(f"measured by: {gains.name}\n{result}")


def recommend(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that fit wrote."), READS],
    out: OutFile,
    k: Annotated[int, typer.Option(help="Items per user.", min=1)] = 10,
    users: Annotated[Path | None, typer.Option(help="Table with user_id (default: all users)."), READS] = None,
    candidates: Annotated[Path | None, typer.Option(help="Table with item_id (default: all items)."), READS] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(help="Log (excludes what was bought), or a table with item_id[, user_id]."),
        READS,
    ] = None,
    on_unknown: Annotated[Unknown, typer.Option(help="Behavior for unknown users.")] = Unknown.refuse,
    on_unknown_items: Annotated[
        UnknownItems, typer.Option(help="Behavior for unknown items in --candidates.")
    ] = UnknownItems.refuse,
    trust: Trust = None,
    threads: Threads = None,
) -> None:
    """Recommend the top items of each user.

    Writes a table: user_id, item_id, score, rank.
    """
    from taurank.learners import load

    rows = load(model, trust=trusted(trust)).write_recommendations(
        out, read_column(users, "user_id"), k, read_column(candidates, "item_id"), read_exclusion(exclude),
        on_unknown.value, threads, on_unknown_item=on_unknown_items.value,
    )  # fmt: skip
    say(f"Wrote {rows:,} recommendations to {out}.")


def tune(
    learner: LearnerName,
    path: LogPath,
    validation: ValidationLog = None,
    truth: TruthPath = None,
    estimator: EstimatorName = None,
    cap: Cap = None,
    metric: Annotated[str, typer.Option(help="Metric to optimize.")] = "CDCG",
    trials: Annotated[int, typer.Option(help="Number of trials.", min=1)] = 20,
    set_: Settings = None,
    search: Annotated[
        list[str] | None, typer.Option(help="Values to try, for example --search cap=0.01,0.1. Repeatable.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Journal file, from which a killed search resumes."), WRITES
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
    html: Annotated[Path | None, typer.Option(help="Also write a page with charts."), WRITES] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the best hyper-parameters as JSON, for fit --settings."), WRITES
    ] = None,
    seed: Seed = 0,
) -> None:
    """Search for a learner's best hyper-parameters."""
    from taurank.data.log import Log
    from taurank.tuning import tune as search_for

    if validation is None and truth is None:
        raise InputError("tune needs --validation LOG or --truth FILE to measure its trials.")
    result = search_for(
        read_learner(learner), Log.read(path), read_gains(read_log(validation), truth, estimator, cap), metric=metric,
        trials=trials, space=_space(search) or None, fixed=read_pairs(set_), journal=journal, jobs=jobs,
        random_state=seed,
    )  # fmt: skip
    say(str(result))
    if html is not None:
        result.write_html(html)
    if out is not None:
        result.write_json(out)


def _space(search: list[str] | None) -> dict[str, list[Any]]:
    return {name: value if isinstance(value, list) else [value] for name, value in read_pairs(search).items()}
