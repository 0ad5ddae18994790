"""The search of ``full``: hyper-parameters of every trained method on every dataset, by the validation weeks.

Each method is searched over the paper's grids (γ and χ; α, λ_c where it has them) and over learning rates, from the
settings known so far. All methods have the same number of trials and of updates. Every trial measures all metrics:
those that CDCG guides count for CP@10 and CP@100 too, and CAR has trials of its own.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import taurank as tr
from taurank_paper.fits import MODEL_METRIC, merit
from taurank_paper.folder import write_text
from taurank_paper.plan import LIMITS, TUNED_METRICS, Dataset, Plan, Preset, Tuned, hyper_parameters, packaged_tuned
from taurank_paper.worlds import Splits


class MethodSearch(NamedTuple):
    """One search: a method on a dataset, guided by one metric, with at most so many updates in a trial."""

    dataset: Dataset
    method: str
    metric: str
    updates: int

    def run(self, preset: Preset, splits: Splits, folder: Path) -> pd.DataFrame:
        """All trials: their settings, their metrics and what they cost."""
        assert preset.search is not None
        split = splits.split(self.dataset)
        epochs = max(1, round(self.updates / tr.learners.learner_class(self.method)().updates_per_epoch(split.train)))
        fixed = {"factors": preset.factors[self.dataset.assignment], **preset.settings, "epochs": epochs}
        space, start = self.space(preset)
        name = re.sub(r"[^\w@.]+", "-", f"{self.dataset} {self.method} {self.metric}")
        (folder / "tuning").mkdir(exist_ok=True)
        return tr.tune(
            self.method, split.train, split.validation, space=space, fixed=fixed, start=start,
            metric=[self.metric, *(metric for metric in TUNED_METRICS if metric != self.metric)],
            trials=preset.search.trials, journal=folder / "tuning" / f"{name}.jsonl",
            random_state=zlib.crc32(name.encode()), show_progress=False,
        ).trials  # fmt: skip

    def space(self, preset: Preset) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """The grid of the learner and the learning rates, and the known settings to try first."""
        assert preset.search is not None
        grid = {name: list(values) for name, values in tr.learners.learner_class(self.method).space.items()}
        grid.pop("control_weight", None)  # the paper's DLCE gives both arms the same weight
        grid["learning_rate"] = list(preset.search.learning_rate)
        # what the package has, not what an earlier search found here: that would make it another search
        table = _table(packaged_tuned(preset), self.dataset).get(self.method, {})
        known = {**table, **table.get(self.metric, {})}
        return grid, {name: known[name] for name in grid if name in known}


def _table(tuned: Tuned, dataset: Dataset) -> dict[str, dict[str, Any]]:
    return tuned.setdefault(dataset.items, {}).setdefault(dataset.assignment, {})


def search(plans: list[Plan], folder: Path, splits: Splits, show_progress: bool) -> Tuned:
    """Search what the plans need, write ``tuned.toml`` and ``search.csv`` into the folder, and return the first."""
    preset = plans[0].preset
    tuned: Tuned = {i: {a: dict(methods) for a, methods in table.items()} for i, table in plans[0].tuned.items()}
    searches, costs = searches_of(plans), []
    trials_of: dict[tuple[Dataset, str], list[pd.DataFrame]] = {}
    for n, one in enumerate(searches, 1):
        began = time.monotonic()
        trials = one.run(preset, splits, folder)
        names = list(one.space(preset)[0])
        best = _best_settings(trials, names).get(one.metric)
        values = trials[one.metric].dropna()
        costs.append({
            "items": one.dataset.items, "setting": one.dataset.assignment, "method": one.method,
            "objective": one.metric, "trials": len(trials), "pruned": int((trials["state"] != "finished").sum()),
            "updates": one.updates, "minutes": round((time.monotonic() - began) / 60, 2),
            "validation": None if best is None else float(max(values, key=lambda value: merit(one.metric, value))),
            "settings": json.dumps(best),
        })  # fmt: skip
        together = trials_of.setdefault((one.dataset, one.method), [])
        together.append(trials)
        if found := _best_settings(pd.concat(together, ignore_index=True), names):
            different = {metric: settings for metric, settings in found.items() if settings != found["CDCG"]}
            _table(tuned, one.dataset)[one.method] = {**found["CDCG"], **different}
        if show_progress:
            print(f"[{n}/{len(searches)}] search: {one.method} on {one.dataset} by {one.metric}", file=sys.stderr)
    if searches:
        write_text(folder / "search.csv", pd.DataFrame(costs).to_csv(index=False))
        write_text(folder / "tuned.toml", tuned_text(tuned))
    return tuned


def searches_of(plans: Iterable[Plan]) -> list[MethodSearch]:
    """One for each method, dataset and guiding metric of the plans; those on one dataset follow each other."""
    searches: dict[tuple[str, str, str], MethodSearch] = {}
    for plan in plans:
        preset = plan.preset
        assert preset.search is not None
        for dataset, method in itertools.product(plan.datasets, plan.file.methods):
            if method.name in LIMITS or "updates" not in hyper_parameters(method.name):
                continue  # not trained: its few hyper-parameters are chosen in the plan
            metrics = (MODEL_METRIC,) if plan.file.kind == "estimators" else plan.metrics_of(dataset)
            plain = Dataset(dataset.items, dataset.assignment, times=dataset.times, seed=dataset.seed)
            updates = preset.updates_on(plain, preset.search.updates / preset.updates)
            wanted = {"CAR" if metric == "CAR" else "CDCG" for metric in metrics} & {*preset.search.objectives}
            for metric in wanted:
                one = MethodSearch(plain, method.name, metric, updates)
                searches.setdefault((str(plain), method.name, metric), one)
    return [searches[key] for key in sorted(searches)]


def _best_settings(trials: pd.DataFrame, names: list[str]) -> dict[str, dict[str, Any]]:
    """For each metric the settings of the best finished trial."""
    finished, best = trials[trials["state"] == "finished"], {}
    for metric in TUNED_METRICS:
        values = finished[metric].dropna()
        if len(values):
            row = finished.loc[max(values.index, key=lambda index: merit(metric, values[index]))]
            given = row[names].dropna()  # a cap of None follows from the log
            best[metric] = {name: value.item() if hasattr(value, "item") else value for name, value in given.items()}
    return best


def tuned_text(tuned: Tuned) -> str:
    """As TOML: a line for each method, in which the settings of a metric are a table in its table."""

    def inline(value: Any) -> str:
        """JSON writes numbers, strings and booleans as TOML does, and TOML has no null."""
        if not isinstance(value, Mapping):
            return json.dumps(value)
        pairs = [f"{json.dumps(key)} = {inline(own)}" for key, own in value.items() if own is not None]
        return f"{{ {', '.join(pairs)} }}"

    lines = ["# Hyper-parameters found on the validation weeks: for CDCG, and what differs for another metric."]
    for items, assignments in tuned.items():
        for assignment, methods in assignments.items():
            lines += ["", f"[{items}.{assignment}]"]
            lines += [f"{json.dumps(method)} = {inline(table)}" for method, table in methods.items()]
    return "\n".join(lines) + "\n"
