"""Search over a learner's hyper-parameters: Optuna over the space each learner declares.

Every trial is a fit, measured by gains (the truth, or an estimate a real shop can make). Trials are kept in a
journal file, so that a killed search goes on where it stopped and several processes share one search; trials
that fall behind are cut short.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pandas as pd
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.formulas import parse
from taurank.learners import LEARNERS, Learner, Record
from taurank.learners.factorization import FactorLearner

if TYPE_CHECKING:
    import altair as alt

Space = Mapping[str, Sequence[float]]
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class SearchSpec:
    """What is searched: which learner, on which log, by which metric of which gains, over which space."""

    learner: str
    log: Log
    validation: Gains
    metric: str
    space: Space
    fixed: Mapping[str, Any]

    @property
    def smaller_is_better(self) -> bool:
        return parse(self.metric).form == "AR"

    def make(self, chosen: Mapping[str, Any]) -> Learner:
        try:
            return LEARNERS[self.learner](**{**self.fixed, **chosen})
        except TypeError as error:
            raise InputError(f"{self.learner} does not take these hyper-parameters: {error}.") from error

    def mark(self) -> str:
        """What a journal belongs to: the data, the metric and what is held fixed."""
        digest = hashlib.blake2b(repr((self.learner, self.metric, sorted(self.fixed.items()))).encode())
        for array in (
            self.log.user,
            self.log.item,
            self.log.treated,
            self.log.outcome,
            self.validation.value,
        ):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Tuning:
    """The result of a search: the best hyper-parameters, their value, and every trial."""

    question: SearchSpec
    best: dict[str, Any]
    value: float
    trials: pd.DataFrame

    def learner(self) -> Learner:
        """A new learner with the best hyper-parameters, not fitted."""
        return self.question.make(self.best)

    def __str__(self) -> str:
        metric = self.question.metric
        shown = self.trials.sort_values(metric, ascending=self.question.smaller_is_better)
        chosen = ", ".join(f"{name}={value:g}" for name, value in self.best.items())
        return f"{shown.to_string(index=False)}\n\nbest {metric} {self.value:.4f} with {chosen}"

    def chart(self) -> alt.HConcatChart:
        """The metric over each hyper-parameter, finished trials and cut ones."""
        import altair as alt

        metric = self.question.metric
        frame = self.trials.rename(columns={metric: "value"})
        charts = [
            alt.Chart(frame, width=240, height=200, title=name)
            .mark_circle(size=60)
            .encode(
                alt.X(f"{name}:O", title=name),
                alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
                alt.Color("state:N", title="trial"),
            )
            for name in self.question.space
        ]
        return alt.hconcat(*charts)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """A page with the chart and the table of trials."""
        from taurank.html import page

        chosen = ", ".join(f"{name} = {value:g}" for name, value in self.best.items())
        blocks = [
            page.text(f"Best {self.question.metric}: {self.value:.4f} with {chosen}."),
            page.chart(self.chart(), "Each point is a trial; a cut trial fell behind the others and was stopped."),
            page.table(self.trials),
        ]
        page.write(path, f"Tuning {self.question.learner}", blocks)


def tune(
    learner: str | type[Learner],
    log: Log,
    validation: Gains,
    *,
    metric: str = "CDCG",
    trials: int = 20,
    space: Space | None = None,
    fixed: Mapping[str, Any] | None = None,
    journal: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    random_state: int = 0,
    show_progress: bool | None = None,
) -> Tuning:
    """Search ``trials`` settings of a learner's space for the best ``metric`` on ``validation``.

    ``space`` maps hyper-parameters to the values to try (default: the learner's own, with the paper's grids for
    γ and χ); ``fixed`` holds the others. ``journal`` is a file: the same call with the same journal goes on where
    it stopped, and stops at once if ``trials`` are done. ``jobs`` processes share the trials, each with one
    thread; with one job the same seed gives the same trials.
    """
    question = _question(learner, log, validation, metric, space, dict(fixed or {}), random_state, jobs)
    if min(trials, jobs) < 1:
        raise InputError(f"trials and jobs must be at least 1, not {trials} and {jobs}.")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal" if journal is None else Path(journal)
        study = _open(path, question)
        _check_journal(study, question, path)
        left = trials - _count(study)
        _search(path, question, left, min(jobs, max(1, left)), random_state, _wants(show_progress))
        return _summary(_open(path, question), question)


def _wants(show_progress: bool | None) -> bool:
    return sys.stderr.isatty() if show_progress is None else show_progress


def _question(
    learner: Any, log: Log, validation: Gains, metric: str, space: Space | None, fixed: dict[str, Any],
    random_state: int, jobs: int,
) -> SearchSpec:  # fmt: skip
    name = learner if isinstance(learner, str) else learner.__name__.lower()
    if name not in LEARNERS:
        raise InputError(f"there is no learner '{name}'; known are {', '.join(LEARNERS)}.")
    kind = LEARNERS[name]
    declared: Space = kind.space
    if not declared:
        raise InputError(f"{name} has no hyper-parameters to search.")
    chosen = {key: tuple(values) for key, values in (space or declared).items() if key not in fixed}
    if not chosen or not all(chosen.values()):
        raise InputError("the space to search is empty; name at least one hyper-parameter with its values.")
    fixed.setdefault("random_state", random_state)
    if jobs > 1 and issubclass(kind, FactorLearner):
        fixed["threads"] = 1
    question = SearchSpec(name, log, validation, parse(metric).name, chosen, fixed)
    question.make({key: values[0] for key, values in chosen.items()})  # refuse unknown names before any fit
    return question


def _open(path: Path, question: SearchSpec) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        direction = "minimize" if question.smaller_is_better else "maximize"
        return optuna.create_study(
            storage=storage, study_name=question.learner, direction=direction, load_if_exists=True
        )
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"the journal '{path}' cannot be read; remove it or name another file.") from error


def _check_journal(study: optuna.Study, question: SearchSpec, path: Path) -> None:
    mark = study.user_attrs.get("mark")
    if mark is not None and mark != question.mark():
        raise InputError(
            f"the journal '{path}' belongs to another search (other data, metric or fixed hyper-parameters); "
            "remove it or name another file."
        )
    study.set_user_attr("mark", question.mark())
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)  # left behind by a process that was killed


def _count(study: optuna.Study) -> int:
    return len(study.get_trials(deepcopy=False, states=_DONE))


def _search(path: Path, question: SearchSpec, left: int, jobs: int, seed: int, show: bool) -> None:
    if left < 1:
        return
    if jobs == 1:
        _work(path, question, left, seed, show)
        return
    shares = [left // jobs + (job < left % jobs) for job in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        work = [pool.submit(_work, path, question, n, seed + job, False) for job, n in enumerate(shares)]
        for share in work:
            share.result()


def _work(path: Path, question: SearchSpec, trials: int, seed: int, show: bool) -> None:
    """One process's share of the trials."""
    study = _open(path, question)
    # a journal that goes on must not draw the same settings again
    study.sampler = optuna.samplers.TPESampler(seed=seed + 1000 * len(study.trials), n_startup_trials=8)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
    study.optimize(lambda trial: _trial(trial, study, question), n_trials=trials, show_progress_bar=show)


def _trial(trial: optuna.Trial, study: optuna.Study, question: SearchSpec) -> float:
    chosen = {name: trial.suggest_categorical(name, values) for name, values in question.space.items()}
    for other in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        if other.params == chosen and other.value is not None:
            return float(other.value)  # fits are deterministic: the same settings give the same value

    def report(_: Learner, record: Record) -> None:
        trial.report(record.metrics[question.metric], record.epoch)
        if trial.should_prune():
            raise optuna.TrialPruned

    learner = question.make(chosen)
    try:
        if isinstance(learner, FactorLearner):
            learner.fit(question.log, question.validation, question.metric, show_progress=False, callback=report)
        else:
            learner.fit(question.log)
    except InputError as error:
        if "diverged" not in str(error):
            raise
        raise optuna.TrialPruned from error
    return float(evaluate(learner, question.validation, question.metric)[question.metric].mean)


def _summary(study: optuna.Study, question: SearchSpec) -> Tuning:
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not finished:
        raise InputError("no trial came to its end: all diverged or were cut; try smaller learning rates.")
    rows = [
        {
            "trial": trial.number,
            **trial.params,
            question.metric: trial.value if trial.value is not None else _last(trial),
            "state": "finished" if trial.state is TrialState.COMPLETE else "cut",
        }
        for trial in study.get_trials(deepcopy=False, states=_DONE)
    ]
    best = study.best_trial
    return Tuning(question, dict(best.params), float(best.value or 0.0), pd.DataFrame(rows))


def _last(trial: Any) -> float:
    values = trial.intermediate_values
    return float(values[max(values)]) if values else float("nan")
