"""The tables: one short function per kind of experiment says which fits fill which rows.

All kinds but ``statistics`` and ``estimators`` are tables of one shape: a row has labels, a metric, and the fits it
is taken from. ``frames`` returns the tables of a plan, from fits that are made or read from the cache.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

import taurank as tr
from taurank.errors import InputError
from taurank_paper import limits
from taurank_paper.fits import MODEL_METRIC, FitSpec, ResultCache, best_of, needs_propensity, weeks_of
from taurank_paper.plan import Dataset, Items, Method, Plan, causal, check_settings, hyper_parameters

DENSITY_BINS = 50
CURVE_COLUMNS = ["items", "setting", "method", "metric", "updates", "value"]
TARGET_COLUMNS = ["items", "setting", "method", "metric", "mean", "std"]
Labels = dict[str, Any]


@dataclass(frozen=True)
class RowSpec:
    """One row of a table: its labels, its metric, and in each draw the fits of which validation takes the best."""

    labels: Labels
    metric: str
    draws: tuple[tuple[FitSpec, ...], ...]

    @property
    def fits(self) -> list[FitSpec]:
        return [fit for fits in self.draws for fit in fits]


def frames(plan: Plan, cache: ResultCache) -> dict[str, pd.DataFrame]:
    """All tables of an experiment, by the name of their file."""
    if plan.kind == "statistics":
        return _statistics(plan, cache)
    if plan.kind == "estimators":
        return {plan.name: _estimators(plan, cache)}
    tables = {plan.name: pd.DataFrame([_row(row, cache, plan.kind == "comparison") for row in row_specs(plan)])}
    if plan.kind == "comparison":
        tables[f"{plan.name}_curves"] = pd.DataFrame(_curves(plan, cache), columns=CURVE_COLUMNS)
        tables[f"{plan.name}_targets"] = pd.DataFrame(_targets(plan, cache), columns=TARGET_COLUMNS)
    return tables


def row_specs(plan: Plan) -> list[RowSpec]:
    """The rows of an experiment's table, in order."""
    return list(_ROWS_BY_KIND[plan.kind](plan)) if plan.kind in _ROWS_BY_KIND else []


def fits_of(plan: Plan) -> list[FitSpec]:
    """The fits an experiment needs, each once, those on the same dataset together."""
    distinct = dict.fromkeys(fit for row in row_specs(plan) for fit in row.fits)
    order = {dataset: n for n, dataset in enumerate(dict.fromkeys(fit.dataset for fit in distinct))}
    return sorted(distinct, key=lambda fit: order[fit.dataset])


# ---- one function per kind -----------------------------------------------------------------------


def _comparison(plan: Plan) -> Iterator[RowSpec]:
    """Tables 3, 4 and 5: every method on every dataset."""
    for dataset, method in itertools.product(plan.datasets, plan.methods):
        yield from _rows(plan, dataset, method, {"method": method.label})


def _capping(plan: Plan) -> Iterator[RowSpec]:
    """Figures 3 and 4: the cap varied, everything else as tuned."""
    for dataset, method, cap in itertools.product(plan.datasets, plan.methods, plan.file.vary.cap):
        yield from _rows(plan, dataset, method, {**_named(plan, method), "cap": cap}, {"cap": cap})


def _unevenness(plan: Plan) -> Iterator[RowSpec]:
    """Figure 5: β varied."""
    for dataset, beta, method in itertools.product(plan.datasets, plan.file.vary.beta, plan.methods):
        labels = {"beta": beta, "method": method.label}
        yield from _rows(plan, replace(dataset, beta=float(beta)), method, labels)


def _misspecification(plan: Plan) -> Iterator[RowSpec]:
    """Figure 6: ξ varied for methods that use propensities, and estimated ones; the others once."""
    for dataset, method in itertools.product(plan.datasets, plan.methods):
        if not needs_propensity(method.name):
            labels = {"method": method.label, "propensity": "none", "xi": np.nan}
            yield from _rows(plan, dataset, method, labels)
            continue
        for xi in plan.file.vary.xi:
            labels = {"method": method.label, "propensity": "misspecified", "xi": xi}
            yield from _rows(plan, replace(dataset, xi=float(xi)), method, labels)
        labels = {"method": method.label, "propensity": "estimated", "xi": np.nan}
        yield from _rows(plan, replace(dataset, propensity="estimated"), method, labels)


def _losses(plan: Plan) -> Iterator[RowSpec]:
    """Section 5.1.2: surrogates of the rank, and the number of factors."""
    for dataset, method in itertools.product(plan.datasets, plan.methods):
        for loss, factors in itertools.product(plan.file.vary.loss, plan.file.vary.factors):
            labels = {**_named(plan, method), "loss": loss, "factors": factors}
            yield from _rows(plan, dataset, method, labels, {"loss": loss, "factors": factors})


def _estimated(plan: Plan) -> Iterator[RowSpec]:
    """Tables 6 and 7 need a model of each method; ``_estimators`` measures it."""
    for dataset, method in itertools.product(plan.datasets, plan.methods):
        settings = plan.settings(method, dataset, MODEL_METRIC)
        labels = {"items": dataset.items, "setting": dataset.assignment, "method": method.label}
        draws = tuple((_fit_spec(plan, drawn, method, settings),) for drawn in plan.drawn(dataset))
        yield RowSpec(labels, MODEL_METRIC, draws)


_ROWS_BY_KIND: Mapping[str, Callable[[Plan], Iterator[RowSpec]]] = {
    "comparison": _comparison, "car": _comparison, "capping": _capping, "unevenness": _unevenness,
    "misspecification": _misspecification, "losses": _losses, "estimators": _estimated,
}  # fmt: skip


def _statistics(plan: Plan, cache: ResultCache) -> dict[str, pd.DataFrame]:
    """Table 2 and Figure 2: the worlds, the weight of the prior, and the propensity of positives."""
    values, curves, densities = [], [], []
    for items in dict.fromkeys(dataset.items for dataset in plan.datasets):
        world = cache.splits.world(items)
        facts = world.describe().to_dict("records")[0] | {"prior_weight": world.origin.get("prior_weight", np.nan)}
        curve = _prior_curve(items, cache)
        best = curve["prior_weight"][int(curve["brier"].argmin())] if len(curve) else np.nan
        facts["tuned_prior_weight"] = best
        values += [{"items": items, "quantity": name, "value": float(value)} for name, value in facts.items()]
        curves.append(curve.assign(items=items)[["items", "prior_weight", "brier"]])
    for dataset in plan.datasets:
        densities += _density(plan.drawn(dataset)[0], cache)
    return {
        plan.name: pd.DataFrame(values),
        f"{plan.name}_brier": pd.concat(curves, ignore_index=True),
        f"{plan.name}_density": pd.DataFrame(densities),
    }


def _estimators(plan: Plan, cache: ResultCache) -> pd.DataFrame:
    """Tables 6 and 7: the error of (capped) IPS in each test week against that week's truth."""
    rows = []
    for spec in row_specs(plan):
        fit = spec.fits[0]
        rows += [{**spec.labels, **row} for row in _errors(fit, plan, cache)]
    return pd.DataFrame(rows)


# ---- rows ----------------------------------------------------------------------------------------


def _rows(
    plan: Plan, dataset: Dataset, method: Method, labels: Labels, varied: Mapping[str, Any] | None = None
) -> Iterator[RowSpec]:
    """A row for each metric; the column of the assignment is called "setting" in all tables."""
    base = {"items": dataset.items, **({} if plan.kind == "unevenness" else {"setting": dataset.assignment})}
    for metric in plan.metrics_of(dataset):
        settings = {**plan.settings(method, dataset, metric), **(varied or {})}
        draws = tuple(
            tuple(_fit_spec(plan, drawn, method, {**settings, **chosen}) for chosen in _choices(method))
            for drawn in plan.drawn(dataset)
        )
        yield RowSpec({**base, **labels}, metric, draws)


def _named(plan: Plan, method: Method) -> Labels:
    """The method is named where there are several."""
    return {"method": method.label} if len(plan.methods) > 1 else {}


def _choices(method: Method) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*method.choose.values()):
        yield dict(zip(method.choose, values, strict=True))


def _fit_spec(plan: Plan, dataset: Dataset, method: Method, settings: Mapping[str, Any]) -> FitSpec:
    fit_settings = {name: value for name, value in settings.items() if name in hyper_parameters(method.name)}
    try:
        check_settings(method.name, fit_settings)
    except InputError as error:
        raise InputError(f"{plan.name}.toml: {error}.") from error
    sizes = (plan.preset.updates_on(dataset, plan.file.length), plan.preset.validations)
    keep = plan.file.keep_models or plan.kind == "estimators"
    snapshots = plan.snapshots(method, dataset, settings)
    return FitSpec.of(dataset, method.name, settings, *sizes, plan.metrics_of(dataset), snapshots, keep)


def _row(spec: RowSpec, cache: ResultCache, costs: bool) -> Labels:
    """Mean and spread over draws and weeks; the hyper-parameters and the cost are those of the first draw."""
    results = [best_of((cache.result(fit) for fit in fits), spec.metric) for fits in spec.draws]
    weeks = [result.values[spec.metric].weeks for result in results]
    row = {**spec.labels, "metric": spec.metric, "mean": float(np.mean(weeks)), "std": float(np.std(weeks))}
    row["weeks"] = json.dumps(weeks)
    if costs:
        first = results[0]
        settings = json.dumps(dict(sorted(first.settings.items())))
        row |= {"settings": settings, "seconds": round(first.seconds, 2), "updates": first.updates}
        row["best_updates"] = first.values[spec.metric].updates
    return row


def _curves(plan: Plan, cache: ResultCache) -> Iterator[Labels]:
    """How the validation metric of each fit of the first draw rose with the updates: has it gone flat?"""
    for spec in row_specs(plan):
        result = best_of((cache.result(fit) for fit in spec.draws[0]), spec.metric)
        name = causal(spec.metric)
        for check in result.curve if name == spec.metric else ():
            yield {**spec.labels, "metric": name, "updates": int(check["updates"]), "value": check[name]}


# ---- what is not a fit ---------------------------------------------------------------------------


def _targets(plan: Plan, cache: ResultCache) -> Iterator[Labels]:
    """The population targets: what methods would reach with unlimited data, by the truth of the test weeks."""
    for dataset, method in itertools.product(plan.datasets, plan.methods):
        if method.name not in limits.TARGETS:
            continue
        cap = float(plan.settings(method, dataset, MODEL_METRIC).get("cap", 0.0))
        metrics = [metric for metric in plan.metrics_of(dataset) if metric == causal(metric)]
        weeks = _target(plan.drawn(dataset)[0], method.name, cap, metrics, cache)
        labels = {"items": dataset.items, "setting": dataset.assignment, "method": method.label}
        for metric in metrics:
            yield {**labels, "metric": metric, "mean": np.mean(weeks[metric]), "std": np.std(weeks[metric])}


def _target(dataset: Dataset, method: str, cap: float, metrics: list[str], cache: ResultCache) -> Mapping[str, Any]:
    """Every metric in each test week."""

    def measure() -> Mapping[str, Any]:
        split = cache.splits.split(dataset)
        return weeks_of(limits.target_scores(method, split.world, cap), split, metrics, cache.threads)

    return cache.cached(cache.key(FitSpec(dataset, method), "target", cap, metrics), measure)


def _prior_curve(items: Items, cache: ResultCache) -> pd.DataFrame:
    """Brier score by prior weight; nothing for a synthetic world, which has no prior."""
    if cache.splits.preset.sizes is not None:
        return pd.DataFrame({"prior_weight": [], "brier": []}, dtype=np.float64)
    key = f"prior-{items}-{cache.splits.fingerprint(items)}"
    return pd.DataFrame(cache.cached(key, lambda: _measure_prior(items, cache)))


def _measure_prior(items: Items, cache: ResultCache) -> Mapping[str, Any]:
    curve = tr.dunnhumby.tune_prior_weight(items, cache.splits.source)
    return {str(name): list(column) for name, column in curve.items()}


def _density(dataset: Dataset, cache: ResultCache) -> list[Labels]:
    log = cache.splits.split(dataset).train
    positives = log.recorded_propensity("a density")[log.outcome == 1]
    density, edges = np.histogram(positives, DENSITY_BINS, (0.0, 1.0), density=True)
    return [
        {"items": dataset.items, "setting": dataset.assignment, "low": low, "high": high, "density": value}
        for low, high, value in zip(edges[:-1], edges[1:], density, strict=True)
    ]


def _errors(fit: FitSpec, plan: Plan, cache: ResultCache) -> list[Labels]:
    """MAE and bias over the test weeks by cap and metric."""
    key = cache.key(fit, "estimators", plan.file.vary.cap, plan.metrics_of(fit.dataset))
    return list(cache.cached(key, lambda: {"rows": _measure_errors(fit, plan, cache)})["rows"])


def _measure_errors(fit: FitSpec, plan: Plan, cache: ResultCache) -> list[Labels]:
    cache.result(fit)
    model, sample = cache.model(fit), cache.splits.split(fit.dataset).test_sample()
    metrics = plan.metrics_of(fit.dataset)
    truth = tr.evaluate(model, sample.truth, metrics, threads=cache.threads)
    rows = []
    for cap in plan.file.vary.cap:
        estimate = tr.gains.capped_ips(sample.log, cap) if cap else tr.gains.ips(sample.log)
        bare = replace(estimate, log=None)  # overlap is not measured here
        estimates = tr.evaluate(model, bare, metrics, threads=cache.threads)
        for metric in metrics:
            error = estimates[metric].per_time - truth[metric].per_time
            row = {"metric": metric, "cap": cap, "mae": float(np.abs(error).mean()), "bias": float(error.mean())}
            rows.append({**row, "truth": truth[metric].mean})
    return rows
