"""Evaluate one ranker or several, and compare two."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import narwhals as nw
import numpy as np

from taurank._checks import check_choice
from taurank._threads import worker_count
from taurank._types import Mask
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.errors import InputError, OverlapWarning, TrainingLogWarning, plural, show
from taurank.estimation.estimators import Estimator
from taurank.estimation.gains import Gains
from taurank.evaluation.evidence import IPS, SNIPS, Evidence, WeighedRows, slope
from taurank.evaluation.intervals import Bootstrap, Estimate, check_fraction, contributions
from taurank.evaluation.measurement import Measured, Measurement
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import AnyRanker
from taurank.evaluation.results import Comparison, Difference, MetricResult, OtherEstimate, Result
from taurank.evaluation.verdicts import choose, judge
from taurank.evaluation.wording import OVERLAP_LIMIT, Wording, overlap_sentence, training_sentence

Metrics = str | Metric | Iterable[str | Metric]
NO_LABEL = "(none)"


@overload
def evaluate(
    ranker: Mapping[str, AnyRanker], gains: Gains | Log, metrics: Metrics | None = None, *,
    baseline: str | None = None, by: Any = None, level: float = 0.95, detail: bool = False,
    unlisted: str | None = None, unit: str = "time", threads: int | None = None,
) -> Comparison: ...  # fmt: skip


@overload
def evaluate(
    ranker: AnyRanker, gains: Gains | Log, metrics: Metrics | None = None, *, baseline: None = None, by: Any = None,
    level: float = 0.95, detail: bool = False, unlisted: str | None = None, unit: str = "time",
    threads: int | None = None,
) -> Result: ...  # fmt: skip


def evaluate(
    ranker: Any,
    gains: Gains | Log,
    metrics: Metrics | None = None,
    *,
    baseline: str | None = None,
    by: Any = None,
    level: float = 0.95,
    detail: bool = False,
    unlisted: str | None = None,
    unit: str = "time",
    threads: int | None = None,
) -> Result | Comparison:
    """Measure a ranker, or several by name, by gains, or by the recommended estimate from a log.

    ``gains`` are the truth, an estimate such as ``gains.ips(log)``, or a log, which stands for
    ``gains.recommended(log)``. Every estimate leads with a verdict: whether to believe it, why, and what to do next.

    ``ranker`` is a fitted learner, an array of scores users × items in the order of the gains' catalog, or a
    ranking table ``user_id, item_id, score`` (or ``rank``) as a frame or a path. A mapping of names to rankers
    returns a ``Comparison`` with paired differences from the ``baseline`` (the first one, unless named) and, for
    estimates, the choice among them.

    All items of the catalog are ranked for all its users: items the ranker does not know come last, tied; for a
    user it does not know all items are tied; items it knows beyond the catalog are ignored. A table that lists
    only part of the items is refused by metrics that count ranks below its end, unless ``unlisted="last"`` ranks
    the unlisted items last, tied. ``metrics`` are names or ``Metric``s; the default fits the kind of the gains.

    ``level`` is that of the intervals. For estimates, ``detail=True`` computes every estimator: beside the doubly
    robust one, which is the answer, SNIPS, IPS and caps with SLOPE's choice among them; where overlap fails, a row
    "worst case" has all that is certain. ``by`` splits the users of an estimate: a frame with ``user_id`` and one
    more column, a mapping of user ids to labels, or an array of labels in the order of the catalog. ``unit`` names a
    time in sentences ("week").

    Warns (``OverlapWarning``) if the gains are estimated and more than 5% of a metric's weight on logged pairs
    falls on pairs with a propensity within 1e-3 of 0 or 1, and (``TrainingLogWarning``) if they come from the log
    that the ranker was trained on.
    """
    check_fraction("level", level)
    if not isinstance(detail, bool):
        raise InputError(f"detail must be True or False, got {show(detail)}.")
    several = isinstance(ranker, Mapping)
    if not several and baseline is not None:
        raise InputError("baseline names one of several rankers; give them as {name: ranker, ...}.")
    rankers = ranker if several else {"": ranker}
    _check_names(rankers, baseline)
    measurement = Measurement.prepare(gains, metrics, unlisted=unlisted)
    table = _evaluate(measurement, rankers, baseline or next(iter(rankers)), by, level, detail, unit, threads)
    _warn(table)
    if several:
        return table
    segments = {label: part[""] for label, part in table.segments.items()}
    return replace(table[""], segments=segments)


def compare(
    a: AnyRanker,
    b: AnyRanker,
    gains: Gains | Log,
    metric: str | Metric | None = None,
    *,
    level: float = 0.95,
    unlisted: str | None = None,
    unit: str = "time",
    threads: int | None = None,
) -> Difference:
    """The paired difference a − b of one metric, user by user, with its interval; options as ``evaluate``."""
    if metric is not None and not isinstance(metric, (str, Metric)):
        raise InputError(f"compare takes one metric, such as 'CP@10', got {show(metric)}.")
    check_fraction("level", level)
    measurement = Measurement.prepare(gains, metric, unlisted=unlisted)
    measurement = replace(measurement, metrics=measurement.metrics[:1])
    table = _evaluate(measurement, {"first": a, "second": b}, "second", None, level, False, unit, threads)
    _warn(table)
    (pair,) = table.differences.values()
    return pair


def _evaluate(
    measurement: Measurement, rankers: Mapping[str, AnyRanker], baseline: str, by: Any, level: float, detail: bool,
    unit: Any, threads: int | None,
) -> Comparison:  # fmt: skip
    if not isinstance(unit, str):
        raise InputError(f"unit must be the name of a time, such as 'week', got {show(unit)}.")
    workers = worker_count(threads)
    measured = {name: measurement.measure(one, workers) for name, one in rankers.items()}
    if not measurement.is_estimate:
        if by is not None or detail:
            raise InputError("by and detail need an estimate: give a log, or gains such as gains.ips(log).")
        return _of_gains(measurement, measured, baseline, level, unit, workers)
    whole = _of_estimates(measurement, measured, baseline, level, detail, unit)
    if by is None:
        return whole
    segments = {}
    for label, users in segments_of(by, measurement.gains.users).items():
        parts = {
            name: replace(one, rows=[rows.of_users(users) for rows in one.rows]) for name, one in measured.items()
        }
        segments[label] = _of_estimates(measurement, parts, baseline, level, detail, unit)
    return replace(whole, segments=segments)


def _of_gains(
    measurement: Measurement, measured: Mapping[str, Measured], baseline: str, level: float, unit: str, workers: int
) -> Comparison:
    """Gains as they are: the users are resampled once, for all rankers and metrics."""
    metrics, visits = measurement.metrics, measurement.visits
    keys = [(name, m) for name in measured for m in range(len(metrics))]
    means = {(name, m): visits.mean(measured[name].per_time[m]) for name, m in keys}
    columns = [contributions(measured[name].per_user[m], visits.by_user, means[name, m]) for name, m in keys]
    spreads = dict(zip(keys, Bootstrap.of(columns, workers), strict=True))

    def result(name: str, m: int) -> MetricResult:
        one, spread = measured[name], spreads[name, m]
        return MetricResult(
            metrics[m], means[name, m], *spread.interval(level), level, one.per_user[m], one.per_time[m], spread,
            Wording.of(metrics[m], measurement.gains, unit), one.overlap[m],
        )  # fmt: skip

    def difference(name: str, m: int) -> Bootstrap:
        return spreads[name, m].minus(spreads[baseline, m])

    results = {name: [result(name, m) for m in range(len(metrics))] for name in measured}
    return _compared(measurement, measured, results, difference, baseline, level)


def _of_estimates(
    measurement: Measurement, measured: Mapping[str, Measured], baseline: str, level: float, detail: bool, unit: str
) -> Comparison:
    own = measurement.gains.estimator
    assert own is not None
    evidence: dict[str, list[Evidence]] = {
        name: [rows.evidence(own) for rows in one.rows] for name, one in measured.items()
    }

    def result(name: str, m: int) -> MetricResult:
        rows, found = measured[name].rows[m], evidence[name][m]
        estimate = found.own
        return MetricResult(
            rows.metric, estimate.mean, *estimate.interval(level), level, estimate.per_user, estimate.per_time,
            estimate, Wording.of(rows.metric, measurement.gains, unit), found.overlap_share,
            judge(found, level, measured[name].trained_here), found.purchases, found.exposure[0],
            tuple(_estimators(rows, found, own, level)) if detail else (),
        )  # fmt: skip

    def difference(name: str, m: int) -> Estimate:
        first, second = measured[name].rows[m], measured[baseline].rows[m]
        pair: Estimate = first.minus(second, own, evidence[name][m].own, evidence[baseline][m].own)
        return pair

    results = {name: [result(name, m) for m in range(len(one.rows))] for name, one in measured.items()}
    return _compared(measurement, measured, results, difference, baseline, level)


def _compared(
    measurement: Measurement, measured: Mapping[str, Measured], results: Mapping[str, Sequence[MetricResult]],
    spread: Callable[[str, int], Bootstrap | Estimate], baseline: str, level: float,
) -> Comparison:  # fmt: skip
    """The results of each ranker, and all differences from the baseline."""
    gains = measurement.gains
    differences = {}
    for name in results:
        for m, metric in enumerate(measurement.metrics if name != baseline else ()):
            one, trained = spread(name, m), tuple(n for n in (name, baseline) if measured[n].trained_here)
            pair = results[name][m], results[baseline][m]
            differences[name, metric.name] = Difference(*pair, *one.interval(level), one, trained)
    first = measurement.metrics[0].name
    choice, verdict = choose(
        {name: each[0] for name, each in results.items()}, baseline,
        {name: pair for (name, metric), pair in differences.items() if metric == first},
    )  # fmt: skip
    table = {
        name: Result(
            {metric.name: metric for metric in each}, gains.users, gains.times, gains.name, level,
            measured[name].unknown_users, measured[name].unknown_items, measured[name].trained_here,
        )
        for name, each in results.items()
    }  # fmt: skip
    return Comparison(table, baseline, differences, choice, verdict)


def _estimators(rows: WeighedRows, evidence: Evidence, own: Estimator, level: float) -> Iterator[OtherEstimate]:
    """The answer first, then the estimators that check it."""
    for estimator, one in ((own, evidence.own), (SNIPS, evidence.snips), (IPS, evidence.ips)):
        yield OtherEstimate(estimator.name, one.mean, *one.interval(level))
    capped = list(rows.by_caps(own))
    for estimator, one in capped:
        yield OtherEstimate(estimator.name, one.mean, *one.interval(level))
    if evidence.overlap_share > OVERLAP_LIMIT:
        yield OtherEstimate("worst case", np.nan, *evidence.worst_case(level))
    elif capped:
        chosen = slope([evidence.own, *(one for _, one in capped)], level)
        cap = f"cap {capped[chosen - 1][0].caps.treated:g}" if chosen else "no cap"
        one = capped[chosen - 1][1] if chosen else evidence.own
        yield OtherEstimate(f"SLOPE: {cap}", one.mean, *one.interval(level))


def _check_names(rankers: Mapping[Any, Any], baseline: Any) -> None:
    if not rankers:
        raise InputError("no ranker is named; give at least one, such as {'DLCE': model}.")
    odd = [name for name in rankers if not isinstance(name, str)]
    if odd:
        raise InputError(f"rankers are named by text, got {show(odd[0])}.")
    if baseline is not None:
        check_choice("baseline", baseline, rankers)


def _warn(table: Comparison) -> None:
    """Warn the caller of ``evaluate`` or ``compare``, once for all rankers."""
    trained = [name for name, result in table.items() if result.trained_here]
    overlap, training = overlap_sentence(table.values()), training_sentence(trained) if trained else ""
    for sentence, kind in ((overlap, OverlapWarning), (training, TrainingLogWarning)):
        if sentence:
            warnings.warn(sentence, kind, stacklevel=3)


def segments_of(by: Any, users: Ids) -> dict[str, Mask]:
    """The users of each label, by label in sorted order; users without one are a segment of their own."""
    labels = np.full(len(users), NO_LABEL, dtype=object)
    ids, given = _labels(by, users)
    codes = users.encode(ids) if ids is not None else np.arange(len(users), dtype=np.int32)
    known = codes >= 0
    if ids is not None and len(np.unique(codes[known])) != np.count_nonzero(known):
        raise InputError("by names a user more than once; give one segment per user.")
    if not known.any():
        raise InputError("by names none of the users of the log.")
    labels[codes[known]] = [_text(one) for one in np.asarray(given, dtype=object)[known]]
    return {label: labels == label for label in sorted(set(labels))}


def _labels(by: Any, users: Ids) -> tuple[Any, Any]:
    """Ids and labels; ids are None for labels in the order of the catalog."""
    if isinstance(by, Mapping):
        return list(by.keys()), list(by.values())
    frame = nw.from_native(by, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        others = [name for name in frame.columns if name != "user_id"]
        if "user_id" not in frame.columns or len(others) != 1:
            raise InputError(f"by needs user_id and one more column, got {', '.join(map(str, frame.columns))[:200]}.")
        return frame["user_id"].to_arrow(), frame[others[0]].to_list()
    try:
        given = list(by)
    except TypeError as error:
        raise InputError(f"by must be a frame, a mapping or labels, got {show(by)}.") from error
    if isinstance(by, str) or len(given) != len(users):
        raise InputError(f"by needs one label per user ({plural(len(users), 'user')}), got {show(by)}.")
    return None, given


def _text(label: Any) -> str:
    missing = label is None or (isinstance(label, float) and np.isnan(label))
    return NO_LABEL if missing else str(label)
