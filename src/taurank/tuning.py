"""Search over the hyper-parameters of a learner.

The study, its journal, the sampler and the pruner are Optuna's. What a trial tries follows from the seed and the
trials before it, so a search makes the same trials after any interruption.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from taurank._checks import check_instance, check_integer
from taurank._progress import Progress
from taurank.data.cell_table import fingerprint
from taurank.data.files import check_target, write_text
from taurank.data.log import Log
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.errors import DivergedError, InputError, first_line, missing_extra, plural
from taurank.estimation import gains
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.metrics import Metric, parse
from taurank.learners import Learner, learner_class, learner_name

if TYPE_CHECKING:
    import optuna

Space = Mapping[str, Sequence[Any]]
Settings = dict[str, Any]
Report = Callable[[Mapping[str, float]], None]
Objective = Callable[[Settings, Report], Mapping[str, float]]

STARTUP = 8  # trials drawn at random before TPE has enough to learn from
RIVALS = 4  # finished trials before any is pruned
WARMUP = 1  # reports of a trial before it can be pruned
DAMAGED = "'{}' is not a journal of taurank, or is damaged; remove it or name another file."
MAX_GRID = 20_000  # settings to list; from a larger grid they are drawn until one is new


def tune(
    learner: str | type[Learner],
    log: Log,
    validation: Log | Gains,
    *,
    metric: str | Metric | Sequence[str | Metric] = "CDCG",
    trials: int = 20,
    space: Space | None = None,
    fixed: Mapping[str, Any] | None = None,
    journal: str | os.PathLike[str] | None = None,
    random_state: int = 0,
    show_progress: bool | None = None,
    start: Mapping[str, Any] | None = None,
) -> Tuning:
    """Search the settings of a learner's space for the best ``metric`` on ``validation``.

    The search begins with ``start`` and goes on by Optuna's tree-structured Parzen estimator. No setting is tried
    twice: it ends early when the whole grid was tried.

    Parameters
    ----------
    learner : a class, the name of one, or "module:Class"
    validation : gains, the truth or an estimate, or a log, which stands for ``gains.recommended(log)``
    metric : one or several; the first is searched and all are recorded
    trials : how many settings
    space : hyper-parameters and the values to try (None: the learner's own, with the paper's grids for γ and χ)
    fixed : the other hyper-parameters
    journal : a file: the same call with the same journal continues where it stopped
    start : settings to begin with, completed by the learner's defaults (None: the defaults if they are in the space)

    Examples
    --------
    >>> import taurank as tr
    >>> sample = tr.World.synthetic(100, 20, random_state=0).sample(3, random_state=1)
    >>> space = {"weight": [0.5, 5.0, 50.0]}
    >>> search = tr.tune(tr.CountingBayes, sample.log, sample.truth, space=space, trials=3, show_progress=False)
    >>> len(search.trials), search.best["weight"] in space["weight"]
    (3, True)
    """
    if not isinstance(log, RemoteLog):
        check_instance("log", log, Log, "Log.read or Log.from_frame")
    if isinstance(validation, Log):
        validation = gains.recommended(validation)
    if not isinstance(validation, RemoteGains):
        check_instance("validation", validation, Gains, "taurank.gains, such as gains.capped_ips(log, cap), or a log")
    check_integer("trials", trials)
    check_integer("random_state", random_state, 0)
    named = (metric,) if isinstance(metric, (str, Metric)) else metric
    metrics = [parse(one) if isinstance(one, str) else one for one in named]
    if not metrics:
        raise InputError("metric is empty; name at least one, such as CDCG.")
    kind, name = learner_class(learner), learner_name(learner_class(learner))
    held = {"random_state": random_state, **(fixed or {})}

    def make(settings: Settings) -> Learner:
        try:
            return kind(**{**held, **settings})
        except TypeError as error:
            raise InputError(f"{name} does not take these hyper-parameters: {error}.") from error

    def objective(settings: Settings, report: Report) -> Mapping[str, float]:
        made: Any = make(settings)
        made.fit(log, validation, metrics, show_progress=False, callback=lambda _, record: report(record.metrics))
        return Measurement.prepare(validation, metrics).means(made)

    searched, first = _searched(name, kind, make, space, held, start)
    facts = (name, [one.name for one in metrics], sorted(held.items()))
    search = Search(
        objective, searched, metrics[0].name, metrics[0].larger_is_better, trials,
        first if all(first[key] in values for key, values in searched.items()) else None,
        seed=random_state, identity=f"{facts!r} {fingerprint(log, validation)}",
    )  # fmt: skip
    with Progress(show_progress, lines=True) as progress:
        rows = search.run(journal, progress)
    finished, sign = [row for row in rows if row["state"] == "finished"], 1 if search.larger_is_better else -1
    if not finished:
        raise InputError("no trial finished: all diverged or were pruned; try smaller learning rates.")
    best = max(finished, key=lambda row: sign * row[search.metric])  # the first of equals
    columns = ["trial", *searched, *(one.name for one in metrics), "state"]
    frame = pd.DataFrame([{column: row.get(column, math.nan) for column in columns} for row in rows])
    return Tuning(name, search, partial(kind, **held), {key: best[key] for key in searched}, frame)


def _searched(
    name: str, kind: type[Learner], make: Callable[[Settings], Learner], space: Space | None,
    held: Mapping[str, Any], start: Mapping[str, Any] | None,
) -> tuple[dict[str, list[Any]], Settings]:  # fmt: skip
    """The values to search of each hyper-parameter, and the settings to begin with."""
    declared = kind.space if space is None else space
    if not declared or {each.name for each in fields(kind)} <= {"random_state", "threads"}:
        raise InputError(f"{name} has no hyper-parameters to search; name some with their values in space.")
    searched = {key: _values(key, values) for key, values in declared.items() if key not in held}
    if not searched:
        raise InputError("the space to search is empty: all of its hyper-parameters are fixed.")
    if unknown := [key for key in start or {} if key not in searched]:
        raise InputError(f"start: '{unknown[0]}' is not searched; searched: {', '.join(searched)}.")
    for key, values in searched.items():  # refuse what the learner does not take before any fit
        for value in values:
            make({**{other: searched[other][0] for other in searched}, key: value})
    defaults = make({}).get_params()
    first = {key: _values(key, [(start or {}).get(key, defaults.get(key))])[0] for key in searched}
    if start is not None:
        searched = {key: _values(key, [*values, first[key]]) for key, values in searched.items()}
    return searched, first


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of a search: the best hyper-parameters, their value, and every trial.

    ``best`` has the searched hyper-parameters, ``settings`` the fixed ones too.
    """

    name: str  # of the learner
    search: Search
    make: partial[Learner]  # the learner with what is fixed
    best: dict[str, Any]
    trials: pd.DataFrame

    @property
    def value(self) -> float:
        """The metric of the best trial."""
        finished = self.trials.loc[self.trials["state"] == "finished", self.search.metric]
        return float(finished.max() if self.search.larger_is_better else finished.min())

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters of the best trial: searched, fixed and default ones."""
        params = self.learner().get_params()
        return {name: value for name, value in params.items() if name in self.make.keywords or name != "threads"}

    def learner(self) -> Learner:
        """A new learner with the best hyper-parameters, not fitted."""
        return self.make(**self.best)

    def to_json(self) -> dict[str, Any]:
        """What a fit needs to repeat the best trial: ``taurank fit --settings`` reads it."""
        return {"learner": self.name, "metric": self.search.metric, "value": self.value, "settings": self.settings}

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """``to_json`` as a file."""
        write_text(path, json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")

    def __repr__(self) -> str:
        return f"Tuning({plural(len(self.trials), 'trial')}, {self._best()})"

    def __str__(self) -> str:
        ordered = self.trials.sort_values(self.search.metric, ascending=not self.search.larger_is_better)
        return f"{ordered.to_string(index=False)}\n\n{self._best()}"

    def _best(self) -> str:
        return f"best {self.search.metric} {self.value:.4f} with {settings_text(self.best)}"


@dataclass(frozen=True)
class Search:
    """What is searched: the settings of ``space`` for which ``objective`` returns the best ``metric``.

    ``objective(settings, report)`` returns the values of all metrics to be recorded. On its way it may call
    ``report`` with their values so far, which ends the trial if it falls behind the median of the others. ``start``
    are settings to try first. ``identity`` is text that identifies this search in its journal.
    """

    objective: Objective
    space: Space
    metric: str
    larger_is_better: bool
    trials: int
    start: Settings | None = None
    seed: int = 0
    identity: str = ""

    def fingerprint(self) -> str:
        """What a journal belongs to. The number of trials is not part of it: more can be asked for later."""
        space = {name: list(values) for name, values in self.space.items()}
        facts = [self.identity, self.metric, space, self.start, self.seed]
        return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    def run(
        self, journal: str | os.PathLike[str] | None = None, progress: Progress | None = None
    ) -> list[dict[str, Any]]:
        """The trials, those in the journal included: settings, metrics (of a pruned one the last) and state."""
        study, progress = self._study(journal), progress or Progress(False)
        total = min(self.trials, math.prod(len(values) for values in self.space.values()))
        progress.begin("trials", total, min(len(self._ended(study)), total))
        while len(tried := [self._settings(trial) for trial in self._ended(study)]) < total:
            trial = self._ask(study, tried)
            settings = self._settings(trial)
            progress.step(f"{self._measure(study, trial, settings)} with {settings_text(settings)}")
        rows = []
        for number, trial in enumerate(self._ended(study)):
            how = trial.user_attrs["ended"]
            rows.append({"trial": number, **self._settings(trial), **how["metrics"], "state": how["state"]})
        return rows

    def _ended(self, study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
        from optuna.trial import TrialState

        return list(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))

    def _settings(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> Settings:
        """The study knows values by their position."""
        return {name: values[trial.params[name]] for name, values in self.space.items()}

    def _study(self, journal: str | os.PathLike[str] | None) -> optuna.Study:
        try:
            import optuna
        except ImportError as error:
            raise missing_extra("optuna", "tune") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            storage = None if journal is None else _storage(check_target(journal))
            study = optuna.create_study(
                storage=storage, pruner=optuna.pruners.MedianPruner(RIVALS, WARMUP), study_name="taurank",
                load_if_exists=True, direction="maximize" if self.larger_is_better else "minimize",
            )  # fmt: skip
            belongs_to = study.user_attrs.get("search")
            known = len(study.get_trials(deepcopy=False))
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # what Optuna raises on odd lines
            if isinstance(error, InputError):
                raise
            raise InputError(DAMAGED.format(journal)) from error
        if belongs_to is None and not known:
            study.set_user_attr("search", self.fingerprint())
        elif belongs_to != self.fingerprint():
            raise InputError(
                f"the journal '{journal}' belongs to another search (other data, metric, space or fixed "
                "hyper-parameters); remove it or name another file."
            )
        return study

    def _ask(self, study: optuna.Study, tried: Sequence[Settings]) -> optuna.Trial:
        """A trial of settings that were not tried."""
        import optuna
        from optuna.distributions import CategoricalDistribution, IntDistribution

        rng, at = np.random.default_rng([self.seed, len(tried)]), None
        if self.start is not None and self.start not in tried:
            at = {name: list(self.space[name]).index(value) for name, value in self.start.items()}
        elif len(tried) < STARTUP:
            at = self._untried(tried, rng)
        waiting = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))  # left by a kill
        if at is not None and not waiting:
            study.enqueue_trial(at)
        study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=1, seed=int(rng.integers(2**31)), multivariate=True,
            constant_liar=False,  # else trials that a kill left running would count
        )  # fmt: skip
        positions: dict[str, Any] = {  # neighbors are near each other if the values are numbers
            name: IntDistribution(0, len(values) - 1) if _are_numbers(values)
            else CategoricalDistribution(range(len(values))) for name, values in self.space.items()
        }  # fmt: skip
        while self._settings(trial := study.ask(positions)) in tried:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(self._untried(tried, rng))
        return trial

    def _untried(self, tried: Sequence[Settings], rng: np.random.Generator) -> dict[str, int]:
        """Positions of settings drawn at random."""
        shape = [len(values) for values in self.space.values()]
        size = math.prod(shape)
        while True:
            for number in rng.permutation(size) if size <= MAX_GRID else rng.integers(0, size, 1):
                at = dict(zip(self.space, map(int, np.unravel_index(number, shape)), strict=True))
                if {name: self.space[name][n] for name, n in at.items()} not in tried:
                    return at

    def _measure(self, study: optuna.Study, trial: optuna.Trial, settings: Settings) -> str:
        """Run one trial and record how it ended; in words."""
        import optuna

        seen: list[Mapping[str, float]] = [{}]

        def report(values: Mapping[str, float]) -> None:
            trial.report(float(values[self.metric]), len(seen) - 1)
            seen.append(values)
            if trial.should_prune():
                raise optuna.TrialPruned

        try:
            metrics, state = self.objective(dict(settings), report), "finished"
        except optuna.TrialPruned:
            metrics, state = seen[-1], "pruned"
        except DivergedError:
            metrics, state = {}, "diverged"
        values = {name: float(value) for name, value in metrics.items()}
        if state == "finished" and not math.isfinite(values[self.metric]):
            state = "diverged"
        trial.set_user_attr("ended", {"state": state, "metrics": values})
        if state == "finished":
            study.tell(trial, values[self.metric])
            return f"{self.metric} {values[self.metric]:.4f}"
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return state


def _storage(path: Path) -> optuna.storages.BaseStorage:
    """A journal file of Optuna's; a line that a kill left incomplete is cut off."""
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    class Backend(JournalFileBackend):  # type: ignore[misc]
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            try:
                super().append_logs(logs)
            except OSError as error:
                raise InputError(
                    f"the journal '{path}' cannot be written: {error.strerror or first_line(error)}; the trials "
                    "before this one are stored."
                ) from error

    try:
        content, begin = path.read_bytes() if path.exists() else b"", b'{"op_code"'
        if content[: len(begin)] != begin[: len(content)]:
            raise InputError(DAMAGED.format(path))
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
        return JournalStorage(Backend(str(path)))
    except OSError as error:
        raise InputError(f"the journal '{path}' cannot be opened: {error.strerror or first_line(error)}.") from error


def _values(name: str, values: Any) -> list[Any]:
    """The values of one hyper-parameter, each once, and numbers in order."""
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)) or not len(values):
        raise InputError(f"the space to search is empty or not a list of values for '{name}', got {values!r}.")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in plain:
        if not (value is None or isinstance(value, (str, int, float, bool))):
            raise InputError(f"space: '{name}' has the value {value!r}; use numbers, strings, booleans or None.")
    distinct = list(dict.fromkeys(plain))
    return sorted(distinct) if _are_numbers(distinct) else distinct


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def settings_text(settings: Mapping[str, Any], equals: str = "=") -> str:
    """Settings in a line: a=1, b=2."""
    return ", ".join(
        f"{name}{equals}{value:g}" if isinstance(value, float) else f"{name}{equals}{value}"
        for name, value in settings.items()
    )
