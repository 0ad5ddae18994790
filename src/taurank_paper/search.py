"""The search of ``full``: hyper-parameters of every trained method on every dataset, by the validation weeks.

Each method is searched over the paper's grids (γ and χ; α, λ_c where it has them) and over learning rates, from the
settings known so far. All methods have the same number of trials and of updates. Every trial measures all metrics:
those that CDCG guides count for CP@10 and CP@100 too, and CAR has trials of its own.
"""

from __future__ import annotations

import json
import re
import sys
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import taurank as tr
from taurank.learners import learner_class
from taurank_paper.fits import MODEL_METRIC, merit
from taurank_paper.folder import write_text
from taurank_paper.plan import (
    LIMITS,
    TUNED_METRICS,
    Budget,
    Dataset,
    Plan,
    Preset,
    Tuned,
    hyper_parameters,
    packaged_tuned,
)
from taurank_paper.worlds import Splits


@dataclass(frozen=True)
class MethodSearch:
    """One search: a method on a dataset, guided by one metric, from the settings known so far."""

    dataset: Dataset
    method: str
    metric: str
    preset: Preset
    budget: Budget

    @property
    def updates(self) -> int:
        """The most of one trial."""
        return self.preset.updates_on(self.dataset, self.budget.updates / self.preset.updates)

    def run(self, splits: Splits, folder: Path) -> pd.DataFrame:
        """All trials: their settings, their metrics and what they cost."""
        split = splits.split(self.dataset)
        epochs = max(1, round(self.updates / learner_class(self.method)().updates_per_epoch(split.train)))
        fixed = {"factors": self.preset.factors[self.dataset.assignment], **self.preset.settings, "epochs": epochs}
        space, start = self.space()
        name = re.sub(r"[^\w@.]+", "-", f"{self.dataset} {self.method} {self.metric}")
        (folder / "tuning").mkdir(exist_ok=True)
        return tr.tune(
            self.method, split.train, split.validation, space=space, fixed=fixed, start=start,
            metric=[self.metric, *(metric for metric in TUNED_METRICS if metric != self.metric)],
            trials=self.budget.trials, journal=folder / "tuning" / f"{name}.jsonl",
            random_state=zlib.crc32(name.encode()), show_progress=False,
        ).trials  # fmt: skip

    def space(self) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """The grid of the learner and the learning rates, and the known settings to try first."""
        grid = {name: list(values) for name, values in learner_class(self.method).space.items()}
        grid.pop("control_weight", None)  # the paper's DLCE gives both arms the same weight
        grid["learning_rate"] = list(self.budget.learning_rate)
        # what the package has, not what an earlier search found here: that would make it another search
        tuned = packaged_tuned(self.preset)
        table = tuned.get(self.dataset.items, {}).get(self.dataset.assignment, {}).get(self.method, {})
        known = {**table, **table.get(self.metric, {})}
        return grid, {name: known[name] for name in grid if name in known}


def search(plans: list[Plan], folder: Path, splits: Splits, show_progress: bool) -> Tuned:
    """Search what the plans need, write ``tuned.toml`` and ``search.csv`` into the folder, and return the first."""
    tuned: Tuned = {i: {a: dict(methods) for a, methods in table.items()} for i, table in plans[0].tuned.items()}
    searches = searches_of(plans)
    trials_of: dict[tuple[str, str, str], list[pd.DataFrame]] = {}
    costs = []
    for n, one in enumerate(searches, 1):
        began = time.monotonic()
        trials = one.run(splits, folder)
        names = list(one.space()[0])
        best = _best_settings(trials, names).get(one.metric)
        values = trials[one.metric].dropna()
        costs.append({
            "items": one.dataset.items, "setting": one.dataset.assignment, "method": one.method,
            "objective": one.metric, "trials": len(trials), "pruned": int((trials["state"] != "finished").sum()),
            "updates": one.updates, "minutes": round((time.monotonic() - began) / 60, 2),
            "validation": None if best is None else float(max(values, key=lambda value: merit(one.metric, value))),
            "settings": json.dumps(best),
        })  # fmt: skip
        place = (one.dataset.items, one.dataset.assignment, one.method)
        trials_of.setdefault(place, []).append(trials)
        found = _best_settings(pd.concat(trials_of[place], ignore_index=True), names)
        if found:
            different = {metric: settings for metric, settings in found.items() if settings != found["CDCG"]}
            methods = tuned.setdefault(one.dataset.items, {}).setdefault(one.dataset.assignment, {})
            methods[one.method] = {**found["CDCG"], **different}
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
        budget = plan.preset.search
        assert budget is not None
        for dataset in plan.datasets:
            metrics = (MODEL_METRIC,) if plan.kind == "estimators" else plan.metrics_of(dataset)
            wanted = {"CAR" if metric == "CAR" else "CDCG" for metric in metrics}
            plain = Dataset(dataset.items, dataset.assignment, times=dataset.times, seed=dataset.seed)
            for method in plan.methods:
                if method.name in LIMITS or "updates" not in hyper_parameters(method.name):
                    continue  # not trained: its few hyper-parameters are chosen in the plan
                for metric in budget.objectives:
                    if metric in wanted:
                        one = MethodSearch(plain, method.name, metric, plan.preset, budget)
                        searches.setdefault((str(plain), method.name, metric), one)
    return [searches[key] for key in sorted(searches)]


def _best_settings(trials: pd.DataFrame, names: list[str]) -> dict[str, dict[str, Any]]:
    """For each metric the settings of the best finished trial."""
    finished = trials[trials["state"] == "finished"]
    best = {}
    for metric in TUNED_METRICS:
        values = finished[metric].dropna()
        if len(values):
            row = finished.loc[max(values.index, key=lambda index: merit(metric, values[index]))]
            best[metric] = {name: row[name].item() if hasattr(row[name], "item") else row[name] for name in names}
    return best


def tuned_text(tuned: Tuned) -> str:
    """As TOML; ``["CP@10"]`` is a table of the method's."""
    lines = ["# Hyper-parameters found on the validation weeks: for CDCG, and what differs for another metric."]
    for items, assignments in tuned.items():
        for assignment, methods in assignments.items():
            for method, table in methods.items():
                name = f"{items}.{assignment}.{method if method.isidentifier() else json.dumps(method)}"
                plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
                lines += ["", f"[{name}]", *_assignments(plain)]
                for metric in [key for key in table if key not in plain]:
                    lines += [f'[{name}."{metric}"]', *_assignments(table[metric])]
    return "\n".join(lines) + "\n"


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    """``key = value`` lines; JSON writes numbers, strings and booleans as TOML does, and TOML has no null."""
    return [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
