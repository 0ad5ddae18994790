"""The report of a pilot: the answer in one sentence first, then what it rests on."""

from __future__ import annotations

from typing import Any

from taurank.report import charts, page  # first: it says which extra is missing

# isort: split
import numpy as np
import pandas as pd

from taurank import __version__
from taurank.evaluation.results import Comparison
from taurank.pilot.answer import KINDS, Pilot, name_of, number, span

LABELS = {"show": "Show it", "keep": "Keep it", "unknown": "Not known"}
_UNIT = "extra purchases per {per}, of the first {k} items"
_MEANING = """\
Every number is an estimate on the last weeks, which no model was trained on, by the doubly robust estimator; the
other estimators are second opinions. An interval contains the truth in {level:.0%} of such logs, if the propensities
are right. Differences are paired by user. A row that is not to be believed has no evidence behind it, whatever its
number is."""
_SECOND = """\
Estimators differ in what they trust: IPS the propensities alone, caps trade variance for bias, SNIPS normalizes its
weights. Where they disagree beyond their intervals, do not believe any of them."""
_EXPERIMENT = """\
{plan} Randomize the slots, record with which probability, and run the pilot again. `tr.pilot.power` computes other \
sizes."""


def write_report(result: Pilot, plan: str) -> None:
    """Write ``report.html``; the file appears whole or not at all."""
    answer, gate = result.answer, result.gate
    todo = [f"{answer.next_step[:1].upper()}{answer.next_step[1:]}."]
    if answer.experiment is not None:
        todo.append(_EXPERIMENT.format(plan=answer.experiment))
    if result.model is not None:
        todo.append("The model, fitted to all weeks, is in 'model', its lists are in 'recommendations.parquet'.")
    steps = [page.heading("What to do now"), page.steps(todo)]
    details = []
    if result.estimate is not None:
        steps = _estimates(result, result.estimate, steps)
        opinions, k = result.estimate.estimators(), result.setting.config.pilot.k
        opinions = opinions[opinions["segment"] == "all"] if "segment" in opinions else opinions
        ends = zip(opinions["low"], opinions["high"], strict=True)
        table = pd.DataFrame({
            "ranking": opinions["ranker"], "estimator": opinions["estimator"],
            "purchases": [number(k * value) for value in opinions["estimate"]],
            "interval": [span(k * low, k * high) for low, high in ends],
        })  # fmt: skip
        details = [page.fold("Second opinions", [page.table(table), page.text(_SECOND)])]
    log = result.setting.log
    facts = {
        "users": f"{log.n_users:,}", "items": f"{log.n_items:,}", "periods": f"{log.n_times:,}",
        "periods that measure": f"{result.setting.test.n_times:,}", "rows": f"{len(log):,}",
        "purchases per user and period": f"{result.setting.purchases_per_visit:.3g}",
        "seed": str(result.setting.config.pilot.seed), "taurank": __version__,
    }  # fmt: skip
    blocks = [
        page.verdict(KINDS[answer.decision], LABELS[answer.decision], " ".join([answer.sentence, *result.cautions])),
        *steps,
        page.heading("Propensities and overlap"),
        page.verdict(gate.level, gate.level.capitalize(), gate.verdict),
        *_experiment(result),
        page.heading("What was used"),
        page.table(pd.DataFrame(facts.items(), columns=["what", "how much"])),
        *([page.listed(result.setting.notes)] if result.setting.notes else []),
        *details,
        *([page.fold("The plan", [page.text(plan)])] if plan else []),
    ]
    page.write(result.folder / "report.html", "Pilot", blocks)


def _estimates(result: Pilot, estimate: Comparison, steps: list[Any]) -> list[Any]:
    options = result.setting.config.pilot
    unit = _UNIT.format(k=options.k, per=result.setting.per)
    drawing = page.chart(charts.estimates_chart(estimate, options.metric, options.k, unit), unit)
    reasons = [
        f"{name_of(name)}: {verdict}" for (name, metric), verdict in estimate.verdicts.items()
        if metric == options.metric
    ]  # fmt: skip
    blocks = [
        page.lead([drawing], steps),
        page.heading("The rankings"),
        page.table(result.table(), right=["purchases", f"minus {estimate.baseline}"]),
        page.text(_MEANING.format(level=options.level)),
        page.fold("Why each number is to be believed or not", [page.listed(reasons)]),
    ]
    for name, table in ((options.segment, estimate), (options.item_segment, result.by_items)):
        if table is not None and table.segments:
            tables = [page.table(result.table(label, table), caption=label) for label in table.segments]
            blocks += [page.heading(f"By {name}"), page.group("tables", tables)]
    if result.curve is not None:
        caption = f"{result.answer.choice or estimate.baseline}: {result.curve.unit}, by the number of items shown"
        blocks += [page.heading("How many items?"), page.chart(charts.curve_chart(result.curve), caption)]
    return blocks


def _experiment(result: Pilot) -> list[Any]:
    design = result.answer.experiment
    if design is None:
        return []
    table = design.table()
    for name in ("weeks", "users"):
        table[name] = [f"{np.ceil(number):,.0f}" for number in table[name]]
    table["randomized"] = [f"{share:.0%}" for share in table["randomized"]]
    caption = f"To detect {design.effect:.3g} extra purchases per {result.setting.per}"
    return [page.heading("Suggested experiment"), page.table(table, caption=caption)]
