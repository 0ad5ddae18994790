"""The search of ``full``: hyper-parameters of every trained method on every data, by the validation week.

Each method is searched over the paper's grids (γ and χ; α, λ_c where it has them) and over learning rates: from the
settings known so far it walks over the grid, one step from the best found, with a leap at random now and then, and
never to the same place twice. A trial is a fit like any other, so it is kept in the cache and measures all metrics at
once: the trials that CDCG guides count for CP@10 and CP@100 too, and CAR has trials of its own. Trials that fall
behind are cut; those of one search are written to a journal, so that a killed search goes on; one process per core
shares them.

``python -m taurank.reproduce.tuning --help`` runs a piece of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from taurank._threads import worker_count
from taurank.data.files import atomic_path
from taurank.errors import InputError
from taurank.evaluation.formulas import parse
from taurank.learners import LEARNERS
from taurank.learners.factorization import FactorLearner
from taurank.paper.plan import plans as plans_
from taurank.paper.plan.plans import Data, Plan, Preset, Settings, Tuned
from taurank.paper.runs.fits import MODEL_METRIC, ResultCache, job
from taurank.paper.runs.progress import Progress
from taurank.paper.runs.samples import Splits

METRICS = ("CDCG", "CP@10", "CP@100", "CAR")
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
LEAPS = 3  # so many trials leap before the walk begins, and every third one after that

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Search:
    """One search: a method on a data, guided by one metric. ``start`` are the settings to try first."""

    data: Data
    method: str
    objective: str
    start: Settings
    preset: Preset

    @property
    def budget(self) -> Mapping[str, Any]:
        assert self.preset.search is not None
        return self.preset.search

    @property
    def trials(self) -> int:
        """So many for each hyper-parameter: a larger grid needs more."""
        return int(self.budget["trials"]) * len(self.space())

    @property
    def place(self) -> tuple[str, str, str]:
        return self.data.items, self.data.setting, self.method

    def space(self) -> dict[str, list[float]]:
        """The grid of the learner and the learning rates, with the first settings among them."""
        kind = LEARNERS[self.method]
        assert issubclass(kind, FactorLearner)
        grid = {**kind.space, "learning_rate": self.budget["learning_rate"]}
        given = {name: [self.start[name]] if name in self.start else [] for name in grid}
        return {name: sorted({*map(float, values), *given[name]}) for name, values in grid.items()}

    def path(self, folder: Path) -> Path:
        """The journal: named by what a trial is, so that searches of another size have one of their own."""
        facts = [asdict(self.data), self.preset.factors, self.preset.sizes, self.budget["updates"], self.space()]
        mark = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
        return folder / "tuning" / ("-".join((*self.place, self.objective, mark)) + ".journal")


def search(plans: Iterable[Plan], folder: Path, source: Folder | None, progress: Progress) -> Tuned:
    """Search what the plans need, write ``tuned.toml`` and ``search.csv`` into the folder, and give the first."""
    plans = list(plans)
    searches = _searches(plans)
    if not searches:
        return plans[0].tuned
    (folder / "tuning").mkdir(parents=True, exist_ok=True)
    left = [max(0, each.trials - _count(each, folder)) for each in searches]
    total, size = sum(each.trials for each in searches), searches[0].budget["updates"]
    progress.say(f"search: {len(searches)} searches, {total} trials of at most {size / 1e6:g} M updates")
    progress.plan(sum(left), "trials")
    _run(searches, left, folder, source, progress)
    tuned = _merged(plans[0].tuned, searches, folder)
    _write_spent(searches, folder)
    with atomic_path(folder / "tuned.toml") as path:
        path.write_text(_text(tuned), encoding="utf-8")
    return tuned


def _searches(plans: Iterable[Plan]) -> list[Search]:
    """One for each method, data and objective that the plans have; those on one data follow each other."""
    found: dict[tuple[Any, ...], Search] = {}
    for each in plans:
        for data in each.data:
            for method in each.methods:
                if not issubclass(LEARNERS.get(method.name, object), FactorLearner):
                    continue
                plain = Data(data.items, data.setting, times=data.times, seed=data.seed)
                for objective in _objectives(each, data):
                    start = replace(each, overrides={}).settings(replace(method, settings={}), data, objective)
                    search = Search(plain, method.name, objective, start, each.preset)
                    found.setdefault((str(plain), method.name, objective), search)
    return [found[key] for key in sorted(found)]


def _objectives(plan: Plan, data: Data) -> list[str]:
    metrics = (MODEL_METRIC,) if plan.kind == "estimators" else plan.metrics_of(data)
    wanted = {"CAR" if metric == "CAR" else "CDCG" for metric in metrics}
    assert plan.preset.search is not None
    return [name for name in plan.preset.search["objectives"] if name in wanted]


# ---- trials --------------------------------------------------------------------------------------


def _run(searches: list[Search], left: list[int], folder: Path, source: Folder | None, progress: Progress) -> None:
    """All trials that are left, one process per core."""
    waiting = [each for each, n in zip(searches, left, strict=True) for _ in range(n)]
    processes = worker_count(None)
    if processes == 1:
        for each in waiting:
            _tell(progress, each, _trial(each, folder, source))
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_take_turns, initargs=(context.Lock(),)) as pool:
        running = {pool.submit(_trial, each, folder, source): each for each in waiting}
        try:
            for done in as_completed(running):
                _tell(progress, running[done], done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _tell(progress: Progress, search: Search, how: str) -> None:
    progress.step(f"{search.method} on {search.data} for {search.objective}: {how}")


_labs: dict[Any, ResultCache] = {}  # of this process: its samples serve all its trials
_turn: Any = nullcontext()  # shared by all processes: who asks sees what the others have asked


def _take_turns(lock: Any) -> None:
    global _turn
    _turn = lock


def _trial(search: Search, folder: Path, source: Folder | None) -> str:
    """One trial, in a process of its own; says how it went."""
    if (folder, source) not in _labs:
        _labs.clear()
        _labs[folder, source] = ResultCache(folder / "cache", Splits(search.preset, source, threads=1), threads=1)
    lab = _labs[folder, source]
    with _turn:
        study = _open(search, folder)
        trial, chosen = _ask(study, search)
    fit = job(search.data, search.method, {**_fixed(search), **chosen}, *_sizes(search))

    def report(step: int, values: Mapping[str, float]) -> None:
        trial.report(values[search.objective], step)
        if trial.should_prune():
            raise optuna.TrialPruned

    try:
        result = lab.result(fit, report, retries=1)
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
        return f"{_shown(chosen)}, cut"
    except InputError as error:
        if "diverged" not in str(error):
            raise
        study.tell(trial, state=TrialState.PRUNED)
        return f"{_shown(chosen)}, diverged"
    values = {name: result.values[name].validation for name in METRICS}
    trial.set_user_attr("values", values)
    study.tell(trial, values[search.objective])
    return f"{_shown(chosen)}, {values[search.objective]:.4f}"


def _sizes(search: Search) -> tuple[int, int]:
    return search.budget["updates"], search.budget["validations"]


def _fixed(search: Search) -> dict[str, Any]:
    return {"factors": search.preset.factors[search.data.setting]}


def _ask(study: optuna.Study, search: Search) -> tuple[optuna.Trial, dict[str, float]]:
    """The next trial: what is known so far first, then the walk over the grid."""
    space, past = search.space(), study.get_trials(deepcopy=False, states=(*DONE, TrialState.RUNNING))
    if past or not set(space) <= set(search.start):
        rng = np.random.default_rng([zlib.crc32(study.study_name.encode()), len(study.trials)])
        chosen = next_settings(space, [each.params for each in past], _leader(study, search), rng)
    else:
        chosen = {name: float(search.start[name]) for name in space}
    study.enqueue_trial(chosen)
    trial = study.ask({name: CategoricalDistribution(values) for name, values in space.items()})
    return trial, dict(trial.params)


def _leader(study: optuna.Study, search: Search) -> dict[str, float] | None:
    return _best(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)), search.objective)


def next_settings(
    space: Mapping[str, list[float]], tried: list[dict[str, float]], best: Mapping[str, float] | None,
    rng: np.random.Generator,
) -> dict[str, float]:  # fmt: skip
    """Settings not tried before: nearest to the best by steps on the grid, or, on a leap, anywhere."""
    grid = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    fresh = [settings for settings in grid if settings not in tried] or grid
    walks = len(tried) > LEAPS and len(tried) % LEAPS
    far = [_steps(space, settings, best) if best and walks else 0 for settings in fresh]
    near = [settings for settings, steps in zip(fresh, far, strict=True) if steps == min(far)]
    return near[int(rng.integers(len(near)))]


def _steps(space: Mapping[str, list[float]], one: Mapping[str, float], two: Mapping[str, float]) -> int:
    return sum(abs(values.index(one[name]) - values.index(two[name])) for name, values in space.items())


def _open(search: Search, folder: Path) -> optuna.Study:
    """The study of a search from its journal, or a new one."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = search.path(folder)
    try:
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))), study_name=path.stem, load_if_exists=True,
            direction="minimize" if parse(search.objective).form == "AR" else "maximize",
        )  # fmt: skip
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"the journal '{path}' cannot be read; remove it to begin again.") from error
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=4)  # small steps start slowly
    return study


def _count(search: Search, folder: Path) -> int:
    """How many trials are done; those that a killed process left behind are given up."""
    study = _open(search, folder)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    return len(study.get_trials(deepcopy=False, states=DONE))


def _shown(chosen: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in chosen.items())


# ---- what was found ------------------------------------------------------------------------------


def _merged(tuned: Tuned, searches: Iterable[Search], folder: Path) -> Tuned:
    """The tuned values with what the searches found: for CDCG, and what differs for the other metrics."""
    merged: dict[str, Any] = {
        items: {setting: dict(methods) for setting, methods in settings.items()} for items, settings in tuned.items()
    }
    by_place: dict[tuple[str, str, str], list[Any]] = {}
    for each in searches:
        finished = _open(each, folder).get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        by_place.setdefault(each.place, []).extend(finished)
    for (items, setting, method), trials in by_place.items():
        best = {metric: found for metric in METRICS if (found := _best(trials, metric))}
        if best:
            table: dict[str, Any] = dict(best["CDCG"])
            table |= {metric: found for metric, found in best.items() if found != best["CDCG"]}
            merged.setdefault(items, {}).setdefault(setting, {})[method] = table
    return merged


def _write_spent(searches: Iterable[Search], folder: Path) -> None:
    """``search.csv``: what each search found and cost; lines of searches made before stay."""
    path, key = folder / "search.csv", ["items", "setting", "method", "objective"]
    found = pd.DataFrame([_spent(each, folder) for each in searches])
    before = pd.read_csv(path) if path.exists() else found.head(0)
    both = pd.concat([each for each in (before, found) if len(each)]).drop_duplicates(key, keep="last")
    with atomic_path(path) as temporary:
        both.sort_values(key).to_csv(temporary, index=False)


def _spent(search: Search, folder: Path) -> dict[str, Any]:
    """A search as a line; ``core_minutes`` is what its trials took, each on one core."""
    trials = _open(search, folder).get_trials(deepcopy=False, states=DONE)
    finished = [each for each in trials if each.state == TrialState.COMPLETE]
    took = [each.duration.total_seconds() for each in trials if each.duration is not None]
    best = _best(finished, search.objective)
    return {
        "items": search.data.items, "setting": search.data.setting, "method": search.method,
        "objective": search.objective, "trials": len(trials), "cut": len(trials) - len(finished),
        "updates": search.budget["updates"], "core_minutes": round(sum(took) / 60, 2),
        "validation": next((each.value for each in finished if each.params == best), None),
        "settings": json.dumps(best),
    }  # fmt: skip


def _best(trials: Iterable[Any], metric: str) -> dict[str, float] | None:
    """The settings of the finished trial with the best value of this metric."""
    sign = -1.0 if parse(metric).form == "AR" else 1.0
    valued = [(sign * each.user_attrs["values"][metric], each.params) for each in trials if each.user_attrs]
    return max(valued, key=lambda pair: pair[0])[1] if valued else None


def _text(tuned: Tuned) -> str:
    """As TOML; ``["CP@10"]`` is a table of the method's."""
    lines = ["# Hyper-parameters found on the validation week: for CDCG, and what differs for another metric."]
    for items, settings in tuned.items():
        for setting, methods in settings.items():
            for method, table in methods.items():
                lines += ["", f"[{items}.{setting}.{method}]"]
                plain = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
                lines += [f"{name} = {value}" for name, value in plain.items()]
                for metric in [name for name in table if name not in plain]:
                    lines += [f'[{items}.{setting}.{method}."{metric}"]']
                    lines += [f"{name} = {value}" for name, value in table[metric].items()]
    return "\n".join(lines) + "\n"


# ---- in pieces -----------------------------------------------------------------------------------


def main(
    out: str = "reproduce",
    items: str = "category,product",
    setting: str = "original,personalized",
    methods: str = "",
    trials: int | None = None,
    updates: int | None = None,
    source: str | None = None,
) -> None:
    """Search hyper-parameters; items, setting and methods are lists with commas (no methods: all of them).

    Run it again to go on. What is found goes into tuned.toml in the folder of --out.
    """
    preset = plans_.load_preset("full")
    given = {name: value for name, value in (("trials", trials), ("updates", updates)) if value is not None}
    preset = replace(preset, search={**(preset.search or {}), **given})
    folder = Path(out)
    own = folder / "tuned.toml"
    tuned = plans_.load_tuned(own if own.exists() else None)
    wanted = []
    for name in ("comparison", "car", "capping"):
        each = plans_.load(name, preset, tuned)
        kept = tuple(m for m in each.methods if not methods or m.name in methods.split(","))
        wanted.append(replace(each.on(items.split(","), setting.split(",")), methods=kept))
    with Progress() as progress:
        search(wanted, folder, source, progress)


if __name__ == "__main__":
    import typer

    typer.run(main)
