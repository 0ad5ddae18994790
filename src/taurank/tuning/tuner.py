"""``tune``: search over the hyper-parameters of a learner.

Every trial is a fit, measured by gains: the truth, or an estimate that a real shop can make.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from taurank._progress import Progress
from taurank._validation import check_instance, check_integer
from taurank.data.files import atomic_path
from taurank.data.fingerprint import fingerprint
from taurank.data.log import Log
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.errors import InputError, plural
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.metrics import Metric, parse
from taurank.learners import Learner, learner_class, learner_name
from taurank.tuning.journal import Trial
from taurank.tuning.proposals import SAMPLERS, Settings, Space, check_sampler, is_ordered
from taurank.tuning.search import Report, SearchSpec, best_trial, run_searches

if TYPE_CHECKING:
    import altair as alt


def tune(
    learner: str | type[Learner],
    log: Log,
    validation: Gains,
    *,
    metric: str | Metric | Sequence[str | Metric] = "CDCG",
    trials: int = 20,
    space: Space | None = None,
    fixed: Mapping[str, Any] | None = None,
    journal: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    random_state: int = 0,
    show_progress: bool | None = None,
    start: Mapping[str, Any] | None = None,
    sampler: str = "tpe",
) -> Tuning:
    """Search ``trials`` settings of a learner's space for the best ``metric`` on ``validation``.

    ``learner`` is a class, the name of one, or "module:Class". ``space`` maps hyper-parameters to the values to try
    (default: the learner's own, with the paper's grids for γ and χ); ``fixed`` holds the others. No setting is tried
    twice: the search ends early when the whole grid was tried. Of several metrics the first is searched and all are
    recorded. ``start`` are settings to try first. ``sampler`` is "tpe" (Optuna's tree-structured Parzen estimator) or
    "walk" (from the best setting so far to its neighbors on the grid).

    ``journal`` is a file: the same call with the same journal continues where it stopped. ``jobs`` processes share
    the trials, each with one thread; the same seed makes the same trials for any number of jobs up to four.
    """
    if isinstance(log, RemoteLog) and jobs != 1:
        raise InputError(f"a trial on a cluster uses all of its workers; leave jobs at 1, got {jobs}.")
    if not isinstance(log, RemoteLog):
        check_instance("log", log, Log, "Log.read or Log.from_frame")
    if not isinstance(validation, RemoteGains):
        check_instance("validation", validation, Gains, "taurank.gains, such as gains.capped_ips(log, cap)")
    for name, number in (("trials", trials), ("jobs", jobs)):
        check_integer(name, number)
    check_integer("random_state", random_state, 0)
    if sampler not in SAMPLERS:
        raise InputError(f"sampler must be one of {', '.join(SAMPLERS)}, got {sampler!r}.")
    if sampler == "tpe":
        check_sampler()
    objective = _LearnerObjective.of(learner, log, validation, metric, fixed or {}, random_state, jobs)
    spec = _spec(objective, space, start, trials, sampler, random_state)
    with Progress(show_progress, lines=True) as progress:
        (done,) = run_searches([spec], [journal], jobs, progress)
    return _summary(spec, objective, done)


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of a search: the best hyper-parameters, their value, and every trial.

    ``best`` has the searched hyper-parameters, ``settings`` the fixed ones too.
    """

    spec: SearchSpec
    objective: _LearnerObjective
    best: dict[str, Any]
    value: float
    trials: pd.DataFrame

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters of the best trial: searched, fixed and default ones."""
        params = self.learner().get_params()
        return {name: value for name, value in params.items() if name in self.objective.fixed or name != "threads"}

    def learner(self) -> Learner:
        """A new learner with the best hyper-parameters, not fitted."""
        return self.objective.make(self.best)

    def to_json(self) -> dict[str, Any]:
        """What a fit needs to repeat the best trial: ``taurank fit --settings`` reads it."""
        name, metric = learner_name(self.objective.learner), self.spec.metric
        return {"learner": name, "metric": metric, "value": self.value, "settings": self.settings}

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """``to_json`` as a file."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False)
        with atomic_path(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return f"Tuning({plural(len(self.trials), 'trial')}, {self._best()})"

    def __str__(self) -> str:
        ordered = self.trials.sort_values(self.spec.metric, ascending=not self.spec.larger_is_better)
        return f"{ordered.to_string(index=False)}\n\n{self._best()}"

    def _best(self) -> str:
        return f"best {self.spec.metric} {self.value:.4f} with {_text(self.best)}"

    def chart(self) -> alt.HConcatChart:
        """The metric over each hyper-parameter, by how the trials ended."""
        from taurank import report

        report.require()
        import altair as alt

        from taurank.tuning.page import panel

        return alt.hconcat(*(panel(self.trials, self.spec.metric, name) for name in self.spec.space))

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """A page with a chart for each hyper-parameter and the table of trials."""
        from taurank import report

        report.require()
        from taurank.tuning import page

        best = f"Best {self.spec.metric}: {self.value:.4f} with {_text(self.best, ' = ')}."
        page.write(path, f"Tuning {self.spec.name}", best, self.trials, self.spec.metric, self.spec.space)


@dataclass(frozen=True)
class _LearnerObjective:
    """Fits a learner on a log and measures it by gains."""

    learner: type[Learner]
    log: Log
    validation: Gains
    metrics: tuple[str | Metric, ...]
    fixed: Mapping[str, Any]
    threads: int | None

    @classmethod
    def of(
        cls, learner: Any, log: Log, validation: Gains, metric: Any, fixed: Mapping[str, Any], seed: int, jobs: int
    ) -> _LearnerObjective:
        kind = learner_class(learner)
        metrics = (metric,) if isinstance(metric, (str, Metric)) else tuple(metric)
        if jobs > 1:
            for part in (kind, *metrics):
                _check_importable(part)
        if not metrics:
            raise InputError("metric is empty; name at least one, such as CDCG.")
        return cls(kind, log, validation, metrics, {"random_state": seed, **fixed}, 1 if jobs > 1 else None)

    def __call__(self, settings: Settings, report: Report) -> Mapping[str, float]:
        learner = self.make(settings)
        if self.threads is not None and "threads" not in self.fixed and hasattr(learner, "threads"):
            learner.threads = self.threads
        learner.fit(
            self.log, self.validation, self.metrics, show_progress=False,
            callback=lambda _, record: report(record.metrics),
        )  # fmt: skip
        return Measurement.prepare(self.validation, list(self.metrics)).means(learner, self.threads)

    def make(self, settings: Mapping[str, Any]) -> Learner:
        try:
            return self.learner(**{**self.fixed, **settings})
        except TypeError as error:
            name = learner_name(self.learner)
            raise InputError(f"{name} does not take these hyper-parameters: {error}.") from error

    def formulas(self) -> list[Metric]:
        """The metrics; the first is searched."""
        return [metric if isinstance(metric, Metric) else parse(metric) for metric in self.metrics]

    def identity(self) -> str:
        """What the results depend on, beside the settings."""
        names = [formula.name for formula in self.formulas()]
        facts = (learner_name(self.learner), names, sorted(self.fixed.items()))
        return f"{facts!r} {fingerprint(self.log, self.validation)}"


def _check_importable(part: type[Learner] | Metric | str) -> None:
    try:
        pickle.dumps(part)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(part, "__name__", None) or getattr(part, "name", part)
        raise InputError(
            f"{name} cannot be sent to other processes; define it at the top of a module, or use jobs=1."
        ) from error


def _spec(
    objective: _LearnerObjective, space: Space | None, start: Mapping[str, Any] | None, trials: int, sampler: str,
    random_state: int,
) -> SearchSpec:  # fmt: skip
    name = learner_name(objective.learner)
    declared = objective.learner.space if space is None else space
    if not declared or {field.name for field in fields(objective.learner)} <= {"random_state", "threads"}:
        raise InputError(f"{name} has no hyper-parameters to search; name some with their values in space.")
    searched = {key: _values(key, values) for key, values in declared.items() if key not in objective.fixed}
    if not searched:
        raise InputError("the space to search is empty: all of its hyper-parameters are fixed.")
    first = () if start is None else (_start(objective, searched, start),)
    for settings in first:
        searched = {key: _ordered([*values, settings[key]]) for key, values in searched.items()}
    for key, values in searched.items():  # refuse what the learner does not take before any fit
        for value in values:
            objective.make({**{other: searched[other][0] for other in searched}, key: value})
    formula = objective.formulas()[0]
    return SearchSpec(
        name, objective, searched, formula.name, formula.larger_is_better, trials, sampler, first,
        seed=random_state, identity=objective.identity(),
    )  # fmt: skip


def _values(name: str, values: Any) -> list[Any]:
    """The values of one hyper-parameter, each once; numbers in order, so that neighbors are near each other."""
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)) or not len(values):
        raise InputError(f"the space to search is empty or not a list of values for '{name}', got {values!r}.")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in plain:
        if not (value is None or isinstance(value, (str, int, float, bool))):
            raise InputError(f"space: '{name}' has the value {value!r}; use numbers, strings, booleans or None.")
    return _ordered(plain)


def _ordered(values: Sequence[Any]) -> list[Any]:
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if is_ordered(distinct) else distinct


def _start(objective: _LearnerObjective, searched: Space, start: Mapping[str, Any]) -> Settings:
    """The settings to try first; what they leave out is at its default."""
    unknown = [name for name in start if name not in searched]
    if unknown:
        raise InputError(f"start: '{unknown[0]}' is not searched; searched: {', '.join(searched)}.")
    defaults = objective.make({}).get_params()
    return {name: _values(name, [start.get(name, defaults.get(name))])[0] for name in searched}


def _summary(spec: SearchSpec, objective: _LearnerObjective, trials: Sequence[Trial]) -> Tuning:
    best = best_trial(trials, spec.metric, spec.larger_is_better)
    if best is None:
        raise InputError("no trial finished: all diverged or were pruned; try smaller learning rates.")
    names = [formula.name for formula in objective.formulas()]
    rows = [
        {
            "trial": trial.number,
            **trial.settings,
            **{name: trial.metrics.get(name, float("nan")) for name in names},
            "state": trial.state,
        }
        for trial in trials
    ]
    return Tuning(spec, objective, dict(best.settings), best.metrics[spec.metric], pd.DataFrame(rows))


def _text(settings: Mapping[str, Any], equals: str = "=") -> str:
    return ", ".join(
        f"{name}{equals}{value:g}" if isinstance(value, float) else f"{name}{equals}{value}"
        for name, value in settings.items()
    )
