"""``taurank fit | update | evaluate | recommend | tune``: from a log to a model, and to what it is worth."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from taurank._choices import UnknownItems, UnknownUsers
from taurank.cli import arguments, options
from taurank.cli.options import READS, WRITES
from taurank.cli.terminal import note, say, to_json
from taurank.errors import InputError, OverlapWarning, TrainingLogWarning


def fit(
    learner: options.LearnerName,
    path: options.LogPath,
    out: options.OutModel,
    set_: options.Settings = None,
    settings: Annotated[
        Path | None, typer.Option(help="Hyper-parameters that tune --out wrote; --set overrides."), READS
    ] = None,
    validation: options.ValidationLog = None,
    truth: options.TruthPath = None,
    estimator: options.EstimatorName = None,
    cap: options.Cap = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Validation metric; repeatable, the first decides when to stop.  [default: CDCG]"),
    ] = None,
    patience: Annotated[int, typer.Option(help="Stop after this many checks without improvement.", min=1)] = 10,
    all_epochs: Annotated[
        bool, typer.Option("--all-epochs", help="Without validation, train all epochs: no choice of a shorter fit.")
    ] = False,
    checkpoint: options.Checkpoint = None,
    checkpoint_minutes: options.CheckpointMinutes = 5.0,
    seed: Annotated[int | None, typer.Option(help="Random seed (default: that of --settings, or 0).", min=0)] = None,
    threads: options.Threads = None,
    cluster: options.ClusterAddress = None,
) -> None:
    """Fit a learner to a log and save the model.

    With --cluster, the log is Parquet that all machines reach; the model and the checkpoint are folders.
    """
    chosen = {"random_state": 0, **arguments.read_settings(settings, learner)}
    if seed is not None:
        chosen["random_state"] = seed
    model = arguments.make_learner(learner, {**chosen, **arguments.read_pairs(set_)}, threads)
    if cluster and out.suffix:
        raise InputError(
            f"'{out}' is the name of a file, but a cluster writes a folder; name it without an ending, such as "
            f"'{out.with_suffix('')}'."
        )
    with arguments.connected(cluster, out) as machines:
        log = arguments.read_log(path, machines)
        gains = None
        if validation or truth:
            gains = arguments.read_gains(arguments.read_log(validation, machines), truth, estimator, cap)
        model.fit(
            log, gains or (None if all_epochs else "auto"), metric=arguments.split_commas(metric) or ["CDCG"],
            patience=patience, checkpoint=checkpoint, checkpoint_minutes=checkpoint_minutes,
        )  # fmt: skip
        model.save(out)
    note(f"Wrote {type(model).__name__}, fitted to {log!r}, to {out}.")


def update(
    model: options.ModelPath,
    path: Annotated[Path, typer.Argument(metavar="LOG", help="Log with the rows since the fit."), READS],
    out: options.OutModel,
    past: Annotated[
        Path | None, typer.Option(help="Log the model has learned from: factors are trained on both."), READS
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs (default: a tenth of those of the fit).", min=1)] = None,
    checkpoint: options.Checkpoint = None,
    trust: options.Trust = None,
    threads: options.Threads = None,
) -> None:
    """Update a model with new rows, users and items.

    Costs a fraction of another fit.
    """
    from taurank.data.log import Log

    learner = arguments.read_model(model, trust)
    if threads is not None and "threads" in learner.get_params():
        learner.set_params(threads=threads)
    log = Log.read(path)
    learner.update(log, arguments.read_log(past), epochs=epochs, checkpoint=checkpoint)
    learner.save(out)
    note(f"Wrote {type(learner).__name__}, updated with {log!r}, to {out}.")


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A model, a .npy array of scores, or a table: user_id, item_id, and score, rank or probability.",
        ),
        READS,
    ],
    path: Annotated[
        Path | None, typer.Argument(metavar="LOG", help="Log to evaluate on; not needed with --truth."), READS
    ] = None,
    truth: options.TruthPath = None,
    estimator: Annotated[options.Estimator | None, options.estimator_option("doubly robust")] = None,
    cap: options.Cap = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", "--metric", help="Metrics, comma-separated or repeated (default: those that fit the gains)."
        ),
    ] = None,
    unlisted: Annotated[
        Literal["last"] | None, typer.Option(help="Where to rank items that a table of rankings does not list.")
    ] = None,
    by: Annotated[
        Path | None, typer.Option(help="Table of segments: user_id or item_id and one more column."), READS
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    format: Annotated[Literal["table", "json", "csv"], typer.Option(help="Output format.")] = "table",
    trust: options.Trust = None,
    threads: options.Threads = None,
    cluster: options.ClusterAddress = None,
) -> None:
    """Evaluate a ranking by true or estimated effects."""
    from taurank.evaluation.evaluate import evaluate as measure
    from taurank.evaluation.text import verdict_sentence

    if cluster is not None and truth is None and estimator is None and cap is None:
        raise InputError("on a cluster, name the estimator: --cap 0.1 for capped IPS, or --estimator ips.")
    ranker = arguments.read_ranker(model, trust)
    with arguments.connected(cluster) as machines, warnings.catch_warnings():
        default: options.Estimator = "doubly-robust" if cluster is None else "ips"
        gains = arguments.read_gains(arguments.read_log(path, machines), truth, estimator, cap, default)
        warnings.simplefilter("ignore", OverlapWarning)  # every format has it
        if format == "table":
            warnings.simplefilter("ignore", TrainingLogWarning)  # the table has it
        result = measure(
            ranker, gains, arguments.split_commas(metrics) or None, by=arguments.read_table(by), level=level,
            unlisted=unlisted, threads=threads,
        )  # fmt: skip
    if format == "table":
        say(f"{result}\nmeasured by: {gains.name}")
    elif format == "csv":
        say(str(result.to_frame().to_csv(index=False)), end="")
    else:
        values = json.loads(result.to_frame().to_json(orient="records"))
        say(to_json({"verdict": verdict_sentence(result) or None, "gains": gains.name, "metrics": values}))


def recommend(
    model: options.ModelPath,
    out: options.OutFile,
    k: Annotated[int, typer.Option("--k", "-k", help="Items per user.", min=1)] = 10,
    users: Annotated[Path | None, typer.Option(help="Table with user_id (default: all users)."), READS] = None,
    history: Annotated[
        Path | None, typer.Option(help="Log with the rows of users that appeared after the fit."), READS
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Table with item_id[, user_id], or a log, whose last period counts (default: all items)."),
        READS,
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(help="Log (excludes what was bought), or a table with item_id[, user_id]."),
        READS,
    ] = None,
    unknown_users: Annotated[UnknownUsers, typer.Option(help="Behavior for unknown users.")] = "raise",
    unknown_items: Annotated[
        UnknownItems, typer.Option(help="Behavior for unknown items in --candidates.")
    ] = "raise",
    trust: options.Trust = None,
    threads: options.Threads = None,
    min_effect: Annotated[
        float | None, typer.Option(help="Recommend only where the estimated effect is at least this.")
    ] = None,
    cluster: options.ClusterAddress = None,
) -> None:
    """Recommend the top items of each user.

    Writes a table: user_id, item_id, score, rank. With --cluster, --out is a folder of Parquet files.
    """
    learner, wanted = arguments.read_model(model, trust), None
    if users is not None:  # a log repeats its users
        wanted = arguments.read_table(users, ["user_id"])["user_id"].unique()
    which: dict[str, Any] = {
        "candidates": arguments.read_items(candidates, of_one_time=True), "exclude": arguments.read_items(exclude),
        "unknown_users": unknown_users, "unknown_items": unknown_items, "min_effect": min_effect,
        "history": arguments.read_log(history),
    }  # fmt: skip
    with arguments.connected(cluster, out) as machines:
        if machines is None:
            written = learner.write_recommendations(out, wanted, k, threads=threads, **which)
        else:
            written = machines.write_recommendations(learner, out, wanted, k, **which)
    note(f"Wrote {written:,} recommendations to {out}.")


def tune(
    learner: options.LearnerName,
    path: options.LogPath,
    validation: options.ValidationLog = None,
    truth: options.TruthPath = None,
    estimator: options.EstimatorName = None,
    cap: options.Cap = None,
    metric: Annotated[str, typer.Option(help="Metric to optimize.")] = "CDCG",
    trials: Annotated[int, typer.Option(help="Number of trials.", min=1)] = 20,
    set_: options.Settings = None,
    search: Annotated[
        list[str] | None, typer.Option(help="Values to try, for example --search cap=0.01,0.1. Repeatable.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Journal file, from which a killed search resumes."), WRITES
    ] = None,
    html: options.Html = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the best settings as JSON, for fit --settings."),
        WRITES,
    ] = None,
    seed: options.Seed = 0,
    cluster: options.ClusterAddress = None,
) -> None:
    """Search for a learner's best hyper-parameters."""
    from taurank.tuning import tune as search_for

    if validation is None and truth is None:
        raise InputError("tune needs --validation LOG or --truth FILE to measure its trials.")
    values = arguments.read_pairs(search)
    space = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    with arguments.connected(cluster, out or journal) as machines:
        gains = arguments.read_gains(arguments.read_log(validation, machines), truth, estimator, cap)
        result = search_for(
            arguments.read_learner(learner), arguments.read_log(path, machines), gains, metric=metric, trials=trials,
            space=space or None, fixed=arguments.read_pairs(set_), journal=journal, random_state=seed,
        )  # fmt: skip
    say(str(result))
    if html is not None:
        from taurank.report.tuning import tuning_page

        tuning_page(result, html)
    if out is not None:
        result.write_json(out)
