"""The tables: which fits fill which rows.

All kinds but ``statistics`` and ``estimators`` are tables of one shape: a row has labels, a metric, and the fits it
is taken from. ``frames`` returns the tables of a plan, from fits that are made or read from the cache.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

import taurank as tr
from taurank_paper import worlds
from taurank_paper.fits import MODEL_METRIC, FitSpec, ResultCache, needs_propensity, weeks_of
from taurank_paper.plan import (
    VARIED,
    Dataset,
    Items,
    Method,
    Plan,
    Settings,
    causal,
    check_settings,
    hyper_parameters,
)

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


def frames(plan: Plan, cache: ResultCache) -> dict[str, pd.DataFrame]:
    """All tables of an experiment, by the name of their file."""
    if plan.file.kind == "statistics":
        return _statistics(plan, cache)
    if plan.file.kind == "estimators":
        rows = [{**spec.labels, **row} for spec in row_specs(plan) for row in _errors(spec, plan, cache)]
        return {plan.name: pd.DataFrame(rows)}
    tables = {plan.name: pd.DataFrame([_row(row, cache, plan.file.kind == "comparison") for row in row_specs(plan)])}
    if plan.file.kind == "comparison":
        tables[f"{plan.name}_curves"] = pd.DataFrame(_curves(plan, cache), columns=CURVE_COLUMNS)
        tables[f"{plan.name}_targets"] = pd.DataFrame(_targets(plan, cache), columns=TARGET_COLUMNS)
    return tables


def fits_of(plan: Plan) -> list[FitSpec]:
    """The fits an experiment needs, each once, those on the same dataset together."""
    distinct = dict.fromkeys(fit for row in row_specs(plan) for fits in row.draws for fit in fits)
    order = {dataset: n for n, dataset in enumerate(dict.fromkeys(fit.dataset for fit in distinct))}
    return sorted(distinct, key=lambda fit: order[fit.dataset])


def row_specs(plan: Plan) -> list[RowSpec]:
    """The rows of an experiment's table, in order; the column of the assignment is called "setting" in all tables."""
    specs = []
    for dataset, method, varied, labels in _variants(plan) if plan.file.kind != "statistics" else ():
        labels = {"items": dataset.items, "setting": dataset.assignment, "method": method.label, **varied, **labels}
        known = hyper_parameters(method.name)
        own = {name: value for name, value in varied.items() if name in known}  # BPR has no cap
        metrics = (MODEL_METRIC,) if plan.file.kind == "estimators" else plan.metrics_of(dataset)
        for metric in metrics:
            settings = {**plan.settings(method, dataset, metric), **own}
            choices = [
                {**settings, **dict(zip(method.choose, values, strict=True))}
                for values in itertools.product(*method.choose.values())
            ]
            draws = tuple(
                tuple(_fit_spec(plan, drawn, method, chosen) for chosen in choices) for drawn in plan.drawn(dataset)
            )
            specs.append(RowSpec(labels, metric, draws))
    return specs


def _variants(plan: Plan) -> Iterator[tuple[Dataset, Method, Settings, Labels]]:
    """What a kind of experiment varies: a dataset, a method, the values of what is varied, and other labels."""
    kind, vary = plan.file.kind, plan.file.vary
    for dataset, method in itertools.product(plan.datasets, plan.file.methods):
        if kind == "unevenness":  # Figure 5
            for beta in vary.beta:
                yield replace(dataset, beta=float(beta)), method, {"beta": beta}, {}
        elif kind == "misspecification":  # Figure 6
            if not needs_propensity(method.name):
                yield dataset, method, {}, {"propensity": "none", "xi": np.nan}
                continue
            for xi in vary.xi:
                yield replace(dataset, xi=float(xi)), method, {}, {"propensity": "misspecified", "xi": xi}
            yield replace(dataset, propensity="estimated"), method, {}, {"propensity": "estimated", "xi": np.nan}
        else:  # Figures 3 and 4, section 5.1.2; Tables 3 to 7, where nothing of a fit is varied
            names = VARIED.get(kind, ()) if kind != "estimators" else ()
            for values in itertools.product(*(getattr(vary, name) for name in names)):
                yield dataset, method, dict(zip(names, values, strict=True)), {}


def _fit_spec(plan: Plan, dataset: Dataset, method: Method, settings: Settings) -> FitSpec:
    try:
        check_settings(method.name, settings)
    except tr.InputError as error:
        raise tr.InputError(f"{plan.name}.toml: {error}.") from error
    return FitSpec.of(
        dataset, method.name, settings, plan.preset.updates_on(dataset, plan.file.length), plan.preset.validations,
        plan.metrics_of(dataset), plan.snapshots(method, dataset, settings),
        keep_model=plan.file.kind == "estimators",
    )  # fmt: skip


def _row(spec: RowSpec, cache: ResultCache, costs: bool) -> Labels:
    """Mean and spread over draws and weeks; the hyper-parameters and the cost are those of the first draw."""
    results = [cache.best(fits, spec.metric)[1] for fits in spec.draws]
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
        if spec.metric == causal(spec.metric):
            for check in cache.best(spec.draws[0], spec.metric)[1].curve:
                point = {"metric": spec.metric, "updates": int(check["updates"]), "value": check[spec.metric]}
                yield {**spec.labels, **point}


# ---- what is not a fit ---------------------------------------------------------------------------


def _targets(plan: Plan, cache: ResultCache) -> Iterator[Labels]:
    """The population targets: what methods would reach with unlimited data, by the truth of the test weeks."""
    for dataset, method in itertools.product(plan.datasets, plan.file.methods):
        if method.name not in worlds.TARGETS:
            continue
        cap = float(plan.settings(method, dataset, MODEL_METRIC).get("cap", 0.0))
        metrics = [metric for metric in plan.metrics_of(dataset) if metric == causal(metric)]
        first = plan.drawn(dataset)[0]

        def measure(first: Dataset = first, name: str = method.name, cap: float = cap, metrics: Any = metrics) -> Any:
            split = cache.splits.split(first)
            return weeks_of(worlds.target_scores(name, split.world, cap), split, metrics, cache.threads)

        weeks = cache.cached(cache.key(FitSpec(first, method.name), "target", cap, metrics), measure)
        labels = {"items": dataset.items, "setting": dataset.assignment, "method": method.label}
        for metric in metrics:
            yield {**labels, "metric": metric, "mean": np.mean(weeks[metric]), "std": np.std(weeks[metric])}


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
        log = cache.splits.split(plan.drawn(dataset)[0]).train
        positives = log.recorded_propensity("a density")[log.outcome == 1]
        density, edges = np.histogram(positives, DENSITY_BINS, (0.0, 1.0), density=True)
        frame = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "density": density})
        frame.insert(0, "items", dataset.items)
        frame.insert(1, "setting", dataset.assignment)
        densities.append(frame)
    return {
        plan.name: pd.DataFrame(values),
        f"{plan.name}_brier": pd.concat(curves, ignore_index=True),
        f"{plan.name}_density": pd.concat(densities, ignore_index=True),
    }


def _prior_curve(items: Items, cache: ResultCache) -> pd.DataFrame:
    """Brier score by prior weight; nothing for a synthetic world, which has no prior."""
    if cache.splits.preset.sizes is not None:
        return pd.DataFrame({"prior_weight": [], "brier": []}, dtype=np.float64)

    def measure() -> Any:
        return tr.dunnhumby.tune_prior_weight(items, cache.splits.source).to_dict("list")

    return pd.DataFrame(cache.cached(f"prior-{items}-{cache.splits.fingerprint(items)}", measure))


def _errors(spec: RowSpec, plan: Plan, cache: ResultCache) -> list[Labels]:
    """Tables 6 and 7: MAE and bias of (capped) IPS in each test week against that week's truth."""
    fit, _ = cache.best(spec.draws[0], MODEL_METRIC)
    caps, metrics = plan.file.vary.cap, plan.metrics_of(fit.dataset)

    def measure() -> Mapping[str, Any]:
        model, sample = cache.model(fit), cache.splits.split(fit.dataset).test_sample()
        truth = tr.evaluate(model, sample.truth, metrics, threads=cache.threads)
        rows = []
        for cap in caps:
            estimate = tr.gains.capped_ips(sample.log, cap) if cap else tr.gains.ips(sample.log)
            bare = replace(estimate, log=None)  # overlap is not measured here
            estimates = tr.evaluate(model, bare, metrics, threads=cache.threads)
            for metric in metrics:
                error = estimates[metric].per_time - truth[metric].per_time
                row = {"metric": metric, "cap": cap, "mae": float(np.abs(error).mean()), "bias": float(error.mean())}
                rows.append({**row, "truth": truth[metric].mean})
        return {"rows": rows}

    return list(cache.cached(cache.key(fit, "estimators", caps, metrics), measure)["rows"])
