"""The search of ``full``: hyper-parameters of every trained method on every dataset, by the validation weeks.

Each method is searched over the paper's grids (γ and χ; α, λ_c where it has them) and over learning rates, from the
settings known so far and from the authors'. All methods have the same number of trials and of updates. A trial is a
fit like any other, so it is cached and measures all metrics at once: the trials that CDCG guides count for CP@10 and
CP@100 too, and CAR has trials of its own.

``python -m taurank_paper.runs.search --help`` runs a part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from taurank._progress import Progress
from taurank.data.files import atomic_path
from taurank.errors import InputError, first_line
from taurank.evaluation.metrics import parse
from taurank.learners import learner_class
from taurank.tuning import Search, Trial, best_trial
from taurank_paper.plan.names import LIMITS, TUNED_METRICS
from taurank_paper.plan.plans import Dataset, Method, Plan, Preset, Settings, Tuned
from taurank_paper.plan.reading import hyper_parameters, load, load_preset, load_tuned
from taurank_paper.runs.cache import ResultCache, make_folder
from taurank_paper.runs.fits import MODEL_METRIC, FitSpec
from taurank_paper.runs.splits import Splits

WARMUP = 4  # checks before a trial is pruned: small learning rates start slowly

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class MethodSearch:
    """One search: a method on a dataset, guided by one metric. ``starts`` are the settings to try first."""

    dataset: Dataset
    method: str
    metric: str
    starts: tuple[Settings, ...]
    preset: Preset
    folder: Path
    source: Folder | None

    @property
    def budget(self) -> Mapping[str, Any]:
        assert self.preset.search is not None
        return self.preset.search

    @property
    def updates(self) -> int:
        """Of one trial."""
        return self.preset.updates_on(self.dataset, self.budget["updates"])

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dataset.items, self.dataset.assignment, self.method

    def spec(self) -> Search:
        """The search for the library's tuner."""
        space = self.space()
        complete = [
            {name: start[name] for name in space} for start in self.first_trials() if set(space) <= set(start)
        ]
        starts = tuple(start for n, start in enumerate(complete) if start not in complete[:n])
        identity = json.dumps([asdict(self.dataset), self.preset.factors, self.preset.sizes, self.updates])
        return Search(
            f"{self.method} on {self.dataset} for {self.metric}", self, space, self.metric,
            parse(self.metric).larger_is_better, int(self.budget["trials"]), "tpe", starts, WARMUP,
            seed=zlib.crc32("-".join((*self.key, self.metric)).encode()), identity=identity,
        )  # fmt: skip

    def space(self) -> dict[str, list[Any]]:
        """The grid of the learner and the learning rates, with the first settings among them."""
        grid = dict(learner_class(self.method).space)
        grid.pop("control_weight", None)  # the paper's DLCE gives both arms the same weight
        if "learning_rate" in hyper_parameters(self.method):
            grid["learning_rate"] = self.budget["learning_rate"]
        given = {name: [start[name] for start in self.first_trials() if name in start] for name in grid}
        return {name: _ordered([*values, *given[name]]) for name, values in grid.items()}

    def first_trials(self) -> list[Settings]:
        """Each start at several learning rates: too small a rate looks like a bad setting.

        A start that comes with a number of updates belongs to longer training. How far training has come is the sum
        of its rates, so the largest first rate that does not exceed that sum is tried, and the next two below it,
        because large rates can diverge. Any other start is tried at its own rate and at the next two above it.
        """
        trials: list[Settings] = []
        for start in self.starts:
            rates = sorted({*self.budget["learning_rate"], start.get("learning_rate", 0.0)} - {0.0})
            own = start.get("learning_rate", 0.0)
            if "updates" in start:
                most = own * start["updates"] / self.updates / mean_rate(self.preset.settings)
                tried = [rate for rate in rates if rate <= most][-3:][::-1] or rates[:1]
            else:
                tried = [rate for rate in rates if rate >= own][:3]
            trials += [{**start, "learning_rate": rate} for rate in tried]
        return trials

    def journal(self) -> Path:
        """Named by what a trial is, so that searches of another size have a journal of their own."""
        digest = hashlib.sha256(self.spec().fingerprint().encode()).hexdigest()[:8]
        name = re.sub(r"[^\w@.]+", "-", "-".join((*self.key, self.metric)))
        return self.folder / "tuning" / f"{name}-{digest}.jsonl"

    def __call__(self, settings: dict[str, Any], report: Any) -> Mapping[str, float]:
        """One trial: the best validation value of every metric."""
        sizes = (self.updates, self.budget["validations"])
        fixed = {"factors": self.preset.factors[self.dataset.assignment], **self.preset.settings}
        fit = FitSpec.of(self.dataset, self.method, {**fixed, **settings}, *sizes)
        result = _cache_of(self).result(fit, report, retries=1)
        return {name: result.values[name].validation for name in TUNED_METRICS}


def mean_rate(settings: Settings) -> float:
    """The mean rate of a schedule that falls geometrically, relative to its first."""
    decay = float(settings.get("rate_decay", 1.0))
    return 1.0 if decay == 1 else (1 - decay) / -math.log(decay)


_caches: dict[tuple[Path, Folder | None], ResultCache] = {}  # of this process: its samples serve all its trials


def _cache_of(search: MethodSearch) -> ResultCache:
    key = search.folder, search.source
    if key not in _caches:
        _caches.clear()
        splits = Splits(search.preset, search.source, None)
        _caches[key] = ResultCache(search.folder / "cache", splits)
    return _caches[key]


def _ordered(values: Sequence[Any]) -> list[Any]:
    numbers = all(isinstance(value, (int, float)) for value in values)
    return sorted({float(value) for value in values}) if numbers else list(dict.fromkeys(values))


def search(plans: Iterable[Plan], folder: Path, source: Folder | None, progress: Progress) -> Tuned:
    """Search what the plans need, write ``tuned.toml`` and ``search.csv`` into the folder, and return the first."""
    plans = list(plans)
    searches = _searches(plans, folder, source)
    if not searches:
        return plans[0].tuned
    make_folder(folder / "tuning")
    specs, size = [each.spec() for each in searches], max(each.updates for each in searches)
    total = sum(spec.trials for spec in specs)
    progress.say(f"search: {len(searches)} searches, {total} trials of at most {size / 1e6:g} M updates")
    trials = [spec.run(each.journal(), progress=progress) for spec, each in zip(specs, searches, strict=True)]
    tuned = _merged(plans[0].tuned, searches, trials)
    _write_costs(folder, pd.DataFrame([_costs(*pair) for pair in zip(searches, trials, strict=True)]))
    with atomic_path(folder / "tuned.toml") as path:
        path.write_text(tuned_text(tuned), encoding="utf-8")
    return tuned


def _searches(plans: Iterable[Plan], folder: Path, source: Folder | None) -> list[MethodSearch]:
    """One for each method, dataset and guiding metric of the plans; those on one dataset follow each other."""
    searches: dict[tuple[str, str, str], MethodSearch] = {}
    for plan in plans:
        for dataset in plan.datasets:
            for method in plan.methods:
                if method.name in LIMITS or "updates" not in hyper_parameters(method.name):
                    continue  # not trained: its few hyper-parameters are chosen in the plan
                plain = Dataset(dataset.items, dataset.assignment, times=dataset.times, seed=dataset.seed)
                for metric in _guiding_metrics(plan, dataset):
                    starts = _starts(plan, method, dataset, metric)
                    one = MethodSearch(plain, method.name, metric, starts, plan.preset, folder, source)
                    searches.setdefault((str(plain), method.name, metric), one)
    return [searches[key] for key in sorted(searches)]


def _starts(plan: Plan, method: Method, dataset: Dataset, metric: str) -> tuple[Settings, ...]:
    """The settings known so far, as the package has them, and the authors' own, for this metric."""
    plain = replace(plan, overrides={}, per_metric=True, tuned=load_tuned(packaged=plan.preset.tuned))
    authors = replace(plain, tuned=load_tuned(packaged="authors.toml"))
    return tuple(each.settings(replace(method, settings={}), dataset, metric) for each in (plain, authors))


def _guiding_metrics(plan: Plan, dataset: Dataset) -> list[str]:
    metrics = (MODEL_METRIC,) if plan.kind == "estimators" else plan.metrics_of(dataset)
    wanted = {"CAR" if metric == "CAR" else "CDCG" for metric in metrics}
    assert plan.preset.search is not None
    return [name for name in plan.preset.search["objectives"] if name in wanted]


# ---- results of a search -------------------------------------------------------------------------


def _merged(tuned: Tuned, searches: Iterable[MethodSearch], trials: Iterable[list[Trial]]) -> Tuned:
    """The tuned settings with those of the searches: for CDCG, and what differs for the other metrics."""
    merged: dict[str, Any] = {
        items: {assignment: dict(methods) for assignment, methods in table.items()} for items, table in tuned.items()
    }
    by_key: dict[tuple[str, str, str], list[Trial]] = {}
    for one, done in zip(searches, trials, strict=True):
        by_key.setdefault(one.key, []).extend(done)
    for (items, assignment, method), done in by_key.items():
        best = {metric: dict(trial.settings) for metric in TUNED_METRICS if (trial := _best(done, metric))}
        if best:
            table: dict[str, Any] = dict(best["CDCG"])
            table |= {metric: settings for metric, settings in best.items() if settings != best["CDCG"]}
            merged.setdefault(items, {}).setdefault(assignment, {})[method] = table
    return merged


def _best(trials: Iterable[Trial], metric: str) -> Trial | None:
    return best_trial(trials, metric, parse(metric).larger_is_better)


def _write_costs(folder: Path, costs: pd.DataFrame) -> None:
    """``search.csv``: what each search found and cost; rows of earlier searches stay."""
    path, key = folder / "search.csv", ["items", "setting", "method", "objective"]
    try:
        before = pd.read_csv(path) if path.exists() else costs.head(0)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {first_line(error)}; remove it and run again.") from error
    if list(before) != list(costs):
        raise InputError(f"'{path}' is not a table of searches; remove it and run again.")
    both = pd.concat([frame for frame in (before, costs) if len(frame)]).drop_duplicates(key, keep="last")
    with atomic_path(path) as temporary:
        both.sort_values(key).to_csv(temporary, index=False)


def _costs(one: MethodSearch, trials: Sequence[Trial]) -> dict[str, Any]:
    """A search as a row; ``cut`` counts the trials that did not finish, ``core_minutes`` adds up all on one core."""
    best = _best(trials, one.metric)
    return {
        "items": one.dataset.items, "setting": one.dataset.assignment, "method": one.method,
        "objective": one.metric, "trials": len(trials),
        "cut": sum(trial.state != "finished" for trial in trials), "updates": one.updates,
        "core_minutes": round(sum(trial.seconds for trial in trials) / 60, 2),
        "validation": None if best is None else best.metrics[one.metric],
        "settings": json.dumps(None if best is None else dict(best.settings)),
    }  # fmt: skip


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


def _assignments(settings: Settings) -> list[str]:
    """``key = value`` lines; JSON writes numbers, strings and booleans as TOML does, and TOML has no null."""
    return [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]


# ---- a part of the search, from the command line -------------------------------------------------


def main(
    out: str = "reproduce",
    items: str = "category,product",
    assignment: str = "original,personalized",
    methods: str = "",
    trials: int | None = None,
    updates: int | None = None,
    source: str | None = None,
) -> None:
    """Search hyper-parameters; items, assignment and methods are lists with commas (no methods: all of them).

    Run it again to continue. The result goes into tuned.toml in the folder of --out.
    """
    preset = load_preset("full")
    given = {name: value for name, value in (("trials", trials), ("updates", updates)) if value is not None}
    preset = replace(preset, search={**(preset.search or {}), **given})
    folder = Path(out)
    own = folder / "tuned.toml"
    tuned = load_tuned(own if own.exists() else None)
    wanted = []
    for name in ("comparison", "car", "capping"):
        plan = load(name, preset, tuned).on(items.split(","), assignment.split(","))
        chosen = tuple(method for method in plan.methods if not methods or method.name in methods.split(","))
        wanted.append(replace(plan, methods=chosen))
    with Progress(True, lines=True) as progress:
        search(wanted, folder, source, progress)


if __name__ == "__main__":
    import typer

    typer.run(main)
