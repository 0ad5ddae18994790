"""The experiments: one short function per name says which fits fill which lines of its table.

All names but ``statistics`` and ``estimators`` are tables of one shape: a line has labels, a metric, and the
fits it is taken from. ``frames`` makes the tables of a plan from fits that are made or found.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from taurank.estimation import gains
from taurank.evaluation.evaluate import evaluate
from taurank.learners import LEARNERS
from taurank.learners.factorization import FactorLearner
from taurank.paper.plan.plans import Data, Method, Plan, causal, check_settings
from taurank.paper.runs import limits
from taurank.paper.runs.fits import MODEL_METRIC, Job, ResultCache, best_of, job, uses_propensity, weeks_of
from taurank.worlds import dunnhumby

DENSITY_BINS = 50
TARGET_COLUMNS = ["items", "setting", "method", "metric", "mean", "std"]
Labels = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One line of a table: its labels, its metric, and the fits of which the best by validation is taken."""

    labels: Labels
    metric: str
    jobs: tuple[Job, ...]


def frames(plan: Plan, lab: ResultCache) -> dict[str, pd.DataFrame]:
    """All tables of an experiment, by the name of their file."""
    if plan.kind == "statistics":
        return _statistics(plan, lab)
    if plan.kind == "estimators":
        return {plan.name: _estimators(plan, lab)}
    made = {plan.name: pd.DataFrame([_row(line, lab, plan.kind == "comparison") for line in lines(plan)])}
    if plan.kind == "comparison":
        made[f"{plan.name}_targets"] = pd.DataFrame(_targets(plan, lab), columns=TARGET_COLUMNS)
    return made


def lines(plan: Plan) -> list[Line]:
    """What an experiment needs, in the order of its table."""
    return list(_LINES[plan.kind](plan)) if plan.kind in _LINES else []


def jobs(plan: Plan) -> list[Job]:
    """The fits an experiment needs, each once, those on the same data together."""
    distinct = dict.fromkeys(each for line in lines(plan) for each in line.jobs)
    order = {data: n for n, data in enumerate(dict.fromkeys(each.data for each in distinct))}
    return sorted(distinct, key=lambda each: order[each.data])


# ---- one function per name -----------------------------------------------------------------------


def _comparison(plan: Plan) -> Iterator[Line]:
    """Tables 3, 4 and 5: every method on every data."""
    for data, method in itertools.product(plan.data, plan.methods):
        yield from _lines(plan, data, method, {"method": method.label})


def _capping(plan: Plan) -> Iterator[Line]:
    """Figures 3 and 4: the cap varied, everything else as tuned."""
    for data, method, cap in itertools.product(plan.data, plan.methods, plan.vary["cap"]):
        yield from _lines(plan, data, method, {**_named(plan, method), "cap": cap}, {"cap": cap})


def _unevenness(plan: Plan) -> Iterator[Line]:
    """Figure 5: β varied."""
    for data, beta, method in itertools.product(plan.data, plan.vary["beta"], plan.methods):
        labels = {"beta": beta, "method": method.label}
        yield from _lines(plan, replace(data, beta=float(beta)), method, labels)


def _misspecification(plan: Plan) -> Iterator[Line]:
    """Figure 6: ξ varied for methods that use propensities, once estimated ones; the others as they are."""
    for data, method in itertools.product(plan.data, plan.methods):
        if not uses_propensity(method.name):
            labels = {"method": method.label, "propensity": "none", "xi": np.nan}
            yield from _lines(plan, data, method, labels)
            continue
        for xi in plan.vary["xi"]:
            labels = {"method": method.label, "propensity": "misspecified", "xi": xi}
            yield from _lines(plan, replace(data, xi=float(xi)), method, labels)
        labels = {"method": method.label, "propensity": "estimated", "xi": np.nan}
        yield from _lines(plan, replace(data, propensity="estimated"), method, labels)


def _losses(plan: Plan) -> Iterator[Line]:
    """Section 5.1.2: surrogates of the rank, and the number of factors."""
    for data, method in itertools.product(plan.data, plan.methods):
        for loss, factors in itertools.product(plan.vary["loss"], plan.vary["factors"]):
            labels = {**_named(plan, method), "loss": loss, "factors": factors}
            yield from _lines(plan, data, method, labels, {"loss": loss, "factors": factors})


def _estimated(plan: Plan) -> Iterator[Line]:
    """Tables 6 and 7 need a model of each method; what is measured of it follows in ``_estimators``."""
    for data, method in itertools.product(plan.data, plan.methods):
        settings = plan.settings(method, data, MODEL_METRIC)
        labels = {"items": data.items, "setting": data.setting, "method": method.label}
        yield Line(labels, MODEL_METRIC, (_job(plan, data, method, settings),))


_LINES: Mapping[str, Callable[[Plan], Iterator[Line]]] = {
    "comparison": _comparison, "car": _comparison, "capping": _capping, "unevenness": _unevenness,
    "misspecification": _misspecification, "losses": _losses, "estimators": _estimated,
}  # fmt: skip


def _statistics(plan: Plan, lab: ResultCache) -> dict[str, pd.DataFrame]:
    """Table 2 and Figure 2: the worlds, the weight of the prior, and the propensity of positives."""
    values, curves, densities = [], [], []
    for items in dict.fromkeys(data.items for data in plan.data):
        world = lab.scenes.world(items)
        facts = world.describe().to_dict("records")[0] | {"prior_weight": world.origin.get("prior_weight", np.nan)}
        curve = _prior_curve(items, lab)
        best = curve["prior_weight"][int(curve["brier"].argmin())] if len(curve) else np.nan
        facts["tuned_prior_weight"] = best
        values += [{"items": items, "quantity": name, "value": float(value)} for name, value in facts.items()]
        curves.append(curve.assign(items=items)[["items", "prior_weight", "brier"]])
    for data in plan.data:
        densities += _density(data, lab)
    return {
        plan.name: pd.DataFrame(values),
        f"{plan.name}_brier": pd.concat(curves, ignore_index=True),
        f"{plan.name}_density": pd.DataFrame(densities),
    }


def _estimators(plan: Plan, lab: ResultCache) -> pd.DataFrame:
    """Tables 6 and 7: the error of (capped) IPS in each test week against that week's truth."""
    rows = []
    for line in lines(plan):
        (fit,) = line.jobs
        rows += [{**line.labels, **row} for row in _errors(fit, plan, lab)]
    return pd.DataFrame(rows)


# ---- lines and rows ------------------------------------------------------------------------------


def _lines(
    plan: Plan, data: Data, method: Method, labels: Labels, varied: Mapping[str, Any] | None = None
) -> Iterator[Line]:
    base = {"items": data.items, **({} if plan.kind == "unevenness" else {"setting": data.setting})}
    for metric in plan.metrics_of(data):
        settings = {**plan.settings(method, data, metric), **(varied or {})}
        found = tuple(_job(plan, data, method, {**settings, **chosen}) for chosen in _choices(method))
        yield Line({**base, **labels}, metric, found)


def _named(plan: Plan, method: Method) -> Labels:
    """The method is named where there are several."""
    return {"method": method.label} if len(plan.methods) > 1 else {}


def _choices(method: Method) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*method.choose.values()):
        yield dict(zip(method.choose, values, strict=True))


def _job(plan: Plan, data: Data, method: Method, settings: Mapping[str, Any]) -> Job:
    if method.name in LEARNERS and issubclass(LEARNERS[method.name], FactorLearner):
        check_settings(method.name, settings, f"{plan.name}.toml")
    sizes = (plan.preset.updates, plan.preset.validations)
    keep = plan.keep_models or plan.kind == "estimators"
    return job(data, method.name, settings, *sizes, metrics=plan.metrics, keep_model=keep)


def _row(line: Line, lab: ResultCache, costs: bool) -> Labels:
    result = best_of((lab.result(each) for each in line.jobs), line.metric)
    value = result.values[line.metric]
    row = {**line.labels, "metric": line.metric, "mean": value.mean, "std": value.std}
    if costs:
        settings = json.dumps(dict(sorted(result.settings.items())))
        row |= {"settings": settings, "seconds": round(result.seconds, 2), "updates": result.updates}
        row["best_updates"] = value.updates
    return row


# ---- what is measured otherwise ------------------------------------------------------------------


def _targets(plan: Plan, lab: ResultCache) -> Iterator[Labels]:
    """What methods would reach with unlimited data, by the truth of the test weeks; kept on disk like a fit."""
    for data, method in itertools.product(plan.data, plan.methods):
        if method.name not in limits.TARGETS:
            continue
        cap = float(plan.settings(method, data, MODEL_METRIC).get("cap", 0.0))
        metrics = [metric for metric in plan.metrics_of(data) if metric == causal(metric)]
        weeks = _target(data, method.name, cap, metrics, lab)
        labels = {"items": data.items, "setting": data.setting, "method": method.label}
        for metric in metrics:
            yield {**labels, "metric": metric, "mean": np.mean(weeks[metric]), "std": np.std(weeks[metric])}


def _target(data: Data, method: str, cap: float, metrics: list[str], lab: ResultCache) -> Mapping[str, Any]:
    """Every metric in each test week."""

    def measure() -> Mapping[str, Any]:
        scene = lab.scenes.scene(data)
        return weeks_of(limits.target_scores(method, scene.world, cap), scene, metrics, lab.threads)

    return lab.kept(lab.key(Job(data, method), "target", cap, metrics), measure)


def _prior_curve(items: str, lab: ResultCache) -> pd.DataFrame:
    """Brier score by prior weight; nothing for a synthetic world, which has no prior."""
    if lab.scenes.preset.sizes is not None:
        return pd.DataFrame({"prior_weight": [], "brier": []}, dtype=np.float64)
    key = f"prior-{items}-{lab.scenes.fingerprint(items)}"
    return pd.DataFrame(lab.kept(key, lambda: _measure_prior(items, lab)))


def _measure_prior(items: str, lab: ResultCache) -> Mapping[str, Any]:
    curve = dunnhumby.tune_prior_weight(items, lab.scenes.source)  # type: ignore[arg-type]
    return {str(name): list(column) for name, column in curve.items()}


def _density(data: Data, lab: ResultCache) -> list[Labels]:
    log = lab.scenes.scene(data).train
    positives = log.recorded_propensity("a density")[log.outcome == 1]
    density, edges = np.histogram(positives, DENSITY_BINS, (0.0, 1.0), density=True)
    return [
        {"items": data.items, "setting": data.setting, "low": low, "high": high, "density": value}
        for low, high, value in zip(edges[:-1], edges[1:], density, strict=True)
    ]


def _errors(fit: Job, plan: Plan, lab: ResultCache) -> list[Labels]:
    """MAE and bias over the test weeks by cap and metric; kept on disk like a fit."""
    key = lab.key(fit, "estimators", plan.vary["cap"], plan.metrics_of(fit.data))
    return list(lab.kept(key, lambda: {"rows": _measure_errors(fit, plan, lab)})["rows"])


def _measure_errors(fit: Job, plan: Plan, lab: ResultCache) -> list[Labels]:
    lab.result(fit)
    model, sample = lab.model(fit), lab.scenes.scene(fit.data).test_sample()
    metrics = plan.metrics_of(fit.data)
    truth = evaluate(model, sample.truth, metrics, threads=lab.threads)
    rows = []
    for cap in plan.vary["cap"]:
        estimate = gains.capped_ips(sample.log, cap) if cap else gains.ips(sample.log)
        bare = replace(estimate, log=None)  # how much weight lacks overlap is not asked here
        found = evaluate(model, bare, metrics, threads=lab.threads)
        for metric in metrics:
            error = found[metric].per_time - truth[metric].per_time
            row = {"metric": metric, "cap": cap, "mae": float(np.abs(error).mean()), "bias": float(error.mean())}
            rows.append({**row, "truth": truth[metric].mean})
    return rows
