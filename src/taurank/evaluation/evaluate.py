"""Evaluate one ranker or several, and compare two."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, overload

from taurank._validation import check_choice
from taurank.data.log import Log
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.errors import InputError, OverlapWarning, TrainingLogWarning, show
from taurank.estimation.gains import Gains
from taurank.evaluation.comparisons import Comparison, ResultTable, training_log, worst_overlap
from taurank.evaluation.measurement import Measurement, Unlisted
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import AnyRanker
from taurank.evaluation.results import Result

Metrics = str | Metric | Iterable[str | Metric]


@overload
def evaluate(
    ranker: Mapping[str, AnyRanker], gains: Gains | Log, metrics: Metrics | None = None, *,
    baseline: str | None = None, unlisted: Unlisted | None = None, unit: str = "time", threads: int | None = None,
) -> ResultTable: ...  # fmt: skip


@overload
def evaluate(
    ranker: AnyRanker, gains: Gains | Log, metrics: Metrics | None = None, *, baseline: None = None,
    unlisted: Unlisted | None = None, unit: str = "time", threads: int | None = None,
) -> Result: ...  # fmt: skip


def evaluate(
    ranker: Any,
    gains: Gains | Log,
    metrics: Metrics | None = None,
    *,
    baseline: str | None = None,
    unlisted: Unlisted | None = None,
    unit: str = "time",
    threads: int | None = None,
) -> Result | ResultTable:
    """Measure a ranker, or several by name, by gains, or by the recommended estimate from a log.

    ``gains`` are the truth, an estimate such as ``gains.ips(log)``, or a log, which stands for
    ``gains.recommended(log)``. Every estimate leads with a verdict: whether to believe it, why, and what to do next.

    ``ranker`` is a fitted learner, an array of scores users × items in the order of the gains' catalog, or a
    ranking table ``user_id, item_id, score`` (or ``rank``) as a frame or a path. A mapping of names to rankers
    returns a ``ResultTable`` with paired differences from the ``baseline`` (the first one, unless named).

    All items of the catalog are ranked for all its users: items the ranker does not know come last, tied; for a
    user it does not know all items are tied; items it knows beyond the catalog are ignored. A table that lists
    only part of the items is refused by metrics that count ranks below its end, unless ``unlisted="last"`` ranks
    the unlisted items last, tied. ``metrics`` are names or ``Metric``s; the default fits the kind of the gains.
    ``unit`` names a time in sentences ("week").

    Warns (``OverlapWarning``) if the gains are estimated and more than 5 % of a metric's weight on logged pairs
    falls on pairs with a propensity within 1e-3 of 0 or 1, and (``TrainingLogWarning``) if they come from the log
    that the ranker was trained on.
    """
    measurement = _measurement(gains, metrics, unlisted, unit, threads)
    if not isinstance(ranker, Mapping):
        if baseline is not None:
            raise InputError("baseline names one of several rankers; give them as {name: ranker, ...}.")
        result = measurement.result(ranker)
        _warn({"": result})
        return result
    check_names(ranker, baseline)
    results = {name: measurement.result(one) for name, one in ranker.items()}
    _warn(results)
    return ResultTable(results, next(iter(results)) if baseline is None else baseline)


def compare(
    a: AnyRanker,
    b: AnyRanker,
    gains: Gains | Log,
    metric: str | Metric | None = None,
    *,
    unlisted: Unlisted | None = None,
    unit: str = "time",
    threads: int | None = None,
) -> Comparison:
    """The paired difference a − b of one metric, user by user, with its interval; options as ``evaluate``."""
    if metric is not None and not isinstance(metric, (str, Metric)):
        raise InputError(f"compare takes one metric, such as 'CP@10', got {show(metric)}.")
    measurement = _measurement(gains, metric, unlisted, unit, threads).first_metric()
    results = {"first": measurement.result(a), "second": measurement.result(b)}
    _warn(results)
    first, second = (result[measurement.formulas[0].name] for result in results.values())
    return Comparison(first, second, worst_overlap(results), training_log(results))


def _measurement(gains: Any, *options: Any) -> Measurement:
    """Gains of a log that no single machine holds are measured where they are."""
    if isinstance(gains, RemoteLog):
        raise InputError("on a cluster, name the estimator: taurank.gains.capped_ips(log, cap), or another one.")
    if isinstance(gains, RemoteGains):
        remote: Measurement = gains.measurement(*options)
        return remote
    return Measurement.of(gains, *options)


def check_names(rankers: Mapping[Any, Any], baseline: Any) -> None:
    if not rankers:
        raise InputError("no ranker is named; give at least one, such as {'DLCE': model}.")
    odd = [name for name in rankers if not isinstance(name, str)]
    if odd:
        raise InputError(f"rankers are named by text, got {show(odd[0])}.")
    if baseline is not None:
        check_choice("baseline", baseline, rankers)


def _warn(results: Mapping[str, Result]) -> None:
    """Warn the caller of ``evaluate`` or ``compare``, once for all rankers."""
    for sentence, kind in ((worst_overlap(results), OverlapWarning), (training_log(results), TrainingLogWarning)):
        if sentence:
            warnings.warn(sentence, kind, stacklevel=3)
