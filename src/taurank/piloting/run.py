"""``pilot``: from a shop's tables to a decision.

Tables → log → propensities → diagnosis → earlier weeks train, later weeks measure → one estimate of all rankings →
the answer → the chosen learner fitted to everything. Each stage is stored, see ``stages``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taurank._progress import Progress
from taurank.data.files import atomic_path
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation import gains, propensity
from taurank.evaluation.estimate import estimate
from taurank.evaluation.estimates import Estimate
from taurank.evaluation.evaluate import evaluate
from taurank.piloting.answer import TODAY, decide
from taurank.piloting.gate import check_gate
from taurank.piloting.learning import fit_learners, learner_of, refit, shelved
from taurank.piloting.plan import Plan, plan_of, read_plan
from taurank.piloting.report import write_report
from taurank.piloting.result import Pilot
from taurank.piloting.shelves import Shelves
from taurank.piloting.side_tables import SideTables
from taurank.piloting.stages import Stages, files_of, key_of


def pilot(
    plan: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    threads: int | None = None,
    show_progress: bool | None = None,
) -> Pilot:
    """Run a pilot: ``plan`` is a TOML file (or its content as a mapping), ``out`` the folder of the result.

    The same call continues where a killed one stopped, and repeats only what a changed plan or table changes. The
    result depends on the tables, the plan and its seed alone, not on ``threads``.
    """
    checked, content = (plan_of(plan), b"") if isinstance(plan, Mapping) else read_plan(plan)
    folder, sides = Path(out), SideTables.read(checked)
    with Progress(show_progress, lines=True) as progress:
        stages = Stages(folder / "stages", progress)
        progress.begin("stages", 5 + 2 * len(checked.learners))
        result = _run(checked, sides, folder, stages, threads)
        _write_outputs(result, content, threads)
        progress.step("report")
    return result


def _run(plan: Plan, sides: SideTables, folder: Path, stages: Stages, threads: int | None) -> Pilot:
    key = key_of(files_of(path for name, path in plan.tables.items() if name not in ("users", "today")),
                 dict(plan.columns), dict(plan.building))  # fmt: skip
    log = stages.run("log", key, ".parquet", lambda path: _build(plan, sides, threads).write(path), Log.read)
    _check(log, plan, sides)  # of a stage that was stored, too: today's ranking may have changed
    shelves = sides.shelves
    key = key_of(key, plan.propensity, plan.seed)
    log = stages.run(
        "propensity",
        key,
        ".parquet",
        lambda path: _with_propensity(log, plan, shelves, threads).write(path),
        Log.read,
    )
    train, test = log.split(share=plan.test_share)
    key = key_of(key, plan.test_share)
    models = fit_learners(plan, train, shelves, key, stages, threads)
    rankings = {name: shelved(model, shelves) for name, model in models.items()}
    compared = compare(plan, rankings, test, sides, threads)
    stages.progress.step("estimates")
    gate = check_gate(log, shelves)
    answer = decide(plan, compared, gate, log, _bought_anyway(plan, rankings, test, threads))
    chosen = models.get(answer.choice or "")
    model = None if chosen is None else refit(plan, str(answer.choice), chosen, log, key, stages, threads)
    return Pilot(answer, compared, gate, rankings, model and shelved(model, shelves), plan, log, test, folder)


def _build(plan: Plan, sides: SideTables, threads: int | None) -> Log:
    log = _read(plan, threads)
    _check(log, plan, sides)
    return log


def _check(log: Log, plan: Plan, sides: SideTables) -> None:
    if log.n_times < 2:
        raise InputError("a pilot needs at least two periods, earlier ones to learn from and later ones to measure.")
    sides.check(log, plan)


def _read(plan: Plan, threads: int | None) -> Log:
    tables = plan.tables
    if "log" in tables:
        return Log.read(tables["log"])
    optional: dict[str, Any] = {name: tables[name] for name in ("visits", "candidates") if name in tables}
    columns = {key.replace("purchases.", "outcomes."): name for key, name in plan.columns.items()}
    return Log.from_events(
        tables["impressions"], tables["purchases"], columns=columns, threads=threads, **optional,
        **{"period": "week", "nulls": "drop", **plan.building},
    )  # fmt: skip


def _with_propensity(log: Log, plan: Plan, shelves: Shelves | None, threads: int | None) -> Log:
    """Recorded propensities are kept, missing ones estimated; the exposure model knows the categories of users."""
    if not log.n_without_propensity:
        return log
    features = shelves.features() if shelves is not None and plan.propensity == "exposure" else None
    return propensity.estimate(log, plan.seed, model=plan.propensity, features=features, threads=threads)


def compare(
    plan: Plan, rankings: Mapping[str, Any], test: Log, sides: SideTables, threads: int | None = None
) -> Estimate:
    """All rankings on the last weeks, today's first if there is one."""
    today = {} if sides.today is None else {TODAY: sides.today}
    return estimate(
        {**today, **rankings}, test, [plan.metric], by=sides.segments, level=plan.level,
        unlisted="last" if today else None, threads=threads,
    )  # fmt: skip


def _bought_anyway(plan: Plan, rankings: Mapping[str, Any], test: Log, threads: int | None) -> float:
    """How many of a list's items are bought without help: the most of any learner's list, shown or not."""
    results = (evaluate(one, gains.outcome(test), [f"P@{plan.k}"], threads=threads) for one in rankings.values())
    return plan.k * max(float(result[f"P@{plan.k}"].mean) for result in results)


def _write_outputs(result: Pilot, content: bytes, threads: int | None) -> None:
    if content:
        with atomic_path(result.folder / "pilot.toml") as temporary:
            temporary.write_bytes(content)
    recommendations, model = result.folder / "recommendations.parquet", result.folder / "model"
    if result.model is None:  # what an earlier run left is not the answer any more
        recommendations.unlink(missing_ok=True)
        model.unlink(missing_ok=True)
    else:
        learner_of(result.model).save(model)
        result.model.write_recommendations(recommendations, k=result.plan.k, candidates=result.log, threads=threads)
    write_report(result, content.decode())
