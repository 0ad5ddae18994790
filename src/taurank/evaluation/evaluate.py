"""Evaluate one ranker or several, and compare two: per-user values of ranking × gains × metric, then their means."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
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
from taurank.estimation.gains import Gains
from taurank.evaluation.evidence import AGREEMENT, IPS, SNIPS, Evidence, Verdict, judge, slope
from taurank.evaluation.intervals import check_fraction
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import AnyRanker, Ranking
from taurank.evaluation.results import Comparison, Difference, MetricResult, OtherEstimate, Result
from taurank.evaluation.text import OVERLAP_LIMIT, number, overlap_sentence, span, training_sentence

Metrics = str | Metric | Iterable[str | Metric]
CAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NO_LABEL = "(none)"
MAX_LABELS = 20  # of numbers that are labels


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
    ranker: Any, gains: Gains | Log, metrics: Metrics | None = None, *, baseline: str | None = None, by: Any = None,
    level: float = 0.95, detail: bool = False, unlisted: str | None = None, unit: str = "time",
    threads: int | None = None,
) -> Result | Comparison:  # fmt: skip
    """Measure a ranker, or several by name, by gains, or by the recommended estimate from a log.

    Every estimate leads with a verdict: whether to believe it, why, and what to do next. All items of the catalog are
    ranked for all its users: items the ranker does not know come last, tied; for a user it does not know all items
    are tied; items it knows beyond the catalog are ignored.

    Parameters
    ----------
    ranker : a fitted learner, an array of scores users × items in the order of the gains' catalog, a ranking table
        ``user_id, item_id, score`` (or ``rank``) as a frame or a path, or a stochastic policy, a table ``user_id,
        item_id, probability``, whose CP@k is the value of k slots, over k; or a mapping of names to rankers
    gains : the truth, an estimate such as ``gains.ips(log)``, or a log, which stands for ``gains.recommended(log)``
    metrics : names or ``Metric`` objects; the default fits the kind of the gains
    baseline : the ranker that others are compared with (None: the first one)
    by : what splits the users of an estimate: a frame with ``user_id`` and one more column, a mapping of user ids to
        labels, or an array of labels in the order of the catalog; a frame with ``item_id`` splits what the items add
        to each list
    level : of the intervals
    detail : compute every estimator: beside the doubly robust one, which is the answer, SNIPS, IPS and caps with
        SLOPE's choice among them; where overlap fails, a row "worst case" has all that is certain
    unlisted : "last" ranks the items that a table does not list last, tied; else metrics refuse a table that ends
        before the ranks they count
    unit : the name of a time in sentences ("week")

    Returns
    -------
    Result : of one ranker
    Comparison : of several, with paired differences from the baseline and, for estimates, the choice among them

    Warns
    -----
    OverlapWarning : if more than 5% of a metric's weight on logged pairs falls on pairs with an estimated gain and a
        propensity within 1e-3 of 0 or 1
    TrainingLogWarning : if the gains come from the log that the ranker was trained on

    Examples
    --------
    >>> import taurank as tr
    >>> world = tr.World.synthetic(n_users=200, n_items=20, random_state=0)
    >>> log = world.sample(times=3, random_state=1).log
    >>> best = world.treated_rate - world.control_rate
    >>> answer = tr.evaluate({"bought": world.treated_rate, "best": best}, log, "CP@10")
    >>> answer["best"]["CP@10"].mean > answer["bought"]["CP@10"].mean
    True
    """
    several = isinstance(ranker, Mapping)
    if not several and baseline is not None:
        raise InputError("baseline names one of several rankers; give them as {name: ranker, ...}.")
    rankers = ranker if several else {"": ranker}
    table = _evaluate(rankers, gains, metrics, baseline, by, level, detail, unlisted, unit, threads)
    if several:
        return table
    table[""].segments = {label: part[""] for label, part in table.segments.items()}
    return table[""]


def compare(
    a: AnyRanker, b: AnyRanker, gains: Gains | Log, metric: str | Metric | None = None, *, level: float = 0.95,
    unlisted: str | None = None, unit: str = "time", threads: int | None = None,
) -> Difference:  # fmt: skip
    """The paired difference a − b of one metric, user by user, with its interval.

    Parameters
    ----------
    a, b : rankers, as in ``evaluate``
    metric : one metric (None: the first default)
    gains, level, unlisted, unit, threads : as in ``evaluate``

    Examples
    --------
    >>> import taurank as tr
    >>> world = tr.World.synthetic(n_users=200, n_items=20, random_state=0)
    >>> truth = world.sample(times=3, random_state=1).truth
    >>> compare(world.treated_rate - world.control_rate, world.control_rate, truth, "CP@5").winner
    'first'
    """
    if metric is not None and not isinstance(metric, (str, Metric)):
        raise InputError(f"compare takes one metric, such as 'CP@10', got {show(metric)}.")
    both = {"first": a, "second": b}
    table = _evaluate(both, gains, metric, "second", None, level, False, unlisted, unit, threads, one=True)
    (pair,) = table.differences.values()
    return pair


def _evaluate(
    rankers: Mapping[Any, Any], gains: Any, metrics: Any, baseline: Any, by: Any, level: float, detail: bool,
    unlisted: Any, unit: Any, threads: Any, one: bool = False,
) -> Comparison:  # fmt: skip
    """``evaluate`` of several rankers, by the first metric alone or by all."""
    check_fraction("level", level)
    if not isinstance(detail, bool):
        raise InputError(f"detail must be True or False, got {show(detail)}.")
    if not rankers:
        raise InputError("no ranker is named; give at least one, such as {'DLCE': model}.")
    odd = [name for name in rankers if not isinstance(name, str)]
    if odd:
        raise InputError(f"rankers are named by text, got {show(odd[0])}.")
    if baseline is not None:
        check_choice("baseline", baseline, rankers)
    measurement = Measurement.prepare(gains, metrics, unlisted=unlisted)
    if one:
        measurement = replace(measurement, metrics=measurement.metrics[:1])
    if not isinstance(unit, str):
        raise InputError(f"unit must be the name of a time, such as 'week', got {show(unit)}.")
    if not measurement.is_estimate and (by is not None or detail):
        raise InputError("by and detail need an estimate: give a log, or gains such as gains.ips(log).")
    workers = worker_count(threads)
    measure: Any = measurement.evidence if measurement.is_estimate else measurement.measured
    rankings = {name: measurement.ranking(ranker) for name, ranker in rankers.items()}
    values = {name: measure(ranking, workers) for name, ranking in rankings.items()}
    options = measurement, rankings, baseline or next(iter(rankers)), level, detail, unit
    table = _table(values, *options)
    if by is not None:
        by_item = "item_id" in _columns(by)
        segments = segments_of(by, measurement.gains.items if by_item else measurement.gains.users)
        masks = list(segments.values())
        parts = {
            name: measurement.by_item(rankings[name], workers, masks) if by_item
            else [[one.of_users(users) for one in own] for users in masks]
            for name, own in values.items()
        }  # fmt: skip
        table.segments = {
            label: _table({name: own[place] for name, own in parts.items()}, *options)
            for place, label in enumerate(segments)
        }
    trained = [name for name, result in table.items() if result.trained_here]
    overlap, training = overlap_sentence(table.values()), training_sentence(trained) if trained else ""
    for sentence, kind in ((overlap, OverlapWarning), (training, TrainingLogWarning)):
        if sentence:
            warnings.warn(sentence, kind, stacklevel=3)
    return table


def _table(
    values: Mapping[str, Any], measurement: Measurement, rankings: Mapping[str, Ranking], baseline: str,
    level: float, detail: bool, unit: str,
) -> Comparison:  # fmt: skip
    """The results of each ranker, all differences from the baseline, and the choice.

    ``values`` are those of each metric: the evidence of a log, or an estimate that has no log.
    """
    gains, metrics, results, differences = measurement.gains, measurement.metrics, {}, {}
    per = "per visiting user" if gains.eligibility.has_visits else "per user"
    per += f" and {unit}" if gains.timed else ""
    for name, ranking in rankings.items():
        trained = getattr(ranking.ranker, "log_fingerprint_", None)
        is_trained_here = trained is not None and trained == gains.log_fingerprint
        rows = {}
        for metric, value in zip(metrics, values[name], strict=True):
            extra = gains.kind == "effect" or (gains.kind is None and metric.name.startswith("C"))
            purchases, evidence = f"{'extra ' if extra else ''}purchases {per}", {}
            if measurement.is_estimate:
                evidence = {
                    "verdict": judge(value, level, is_trained_here), "overlap_share": value.overlap_share,
                    "purchases": value.purchases, "exposure": value.exposure[0],
                    "estimators": tuple(_estimators(value, level)) if detail else (),
                }  # fmt: skip
            own = value.own if measurement.is_estimate else value
            rows[metric.name] = MetricResult(own, level, metric, purchases, **evidence)
        unknown = ranking.unknown_users, ranking.unknown_items
        results[name] = Result(rows, gains.users, gains.times, gains.name, *unknown, is_trained_here)
    for name, result in results.items():
        trained_here = tuple(each for each in (name, baseline) if results[each].trained_here)
        for metric, first, second in zip(metrics, values[name], values[baseline], strict=True):
            if name != baseline:
                pair = result[metric.name], results[baseline][metric.name]
                differences[name, metric.name] = Difference(first.minus(second), level, *pair, trained_here)
    table = Comparison(results, baseline, differences)
    if measurement.is_estimate:
        table.choice, table.verdict = _choose(table, metrics[0], {name: own[0] for name, own in values.items()})
    return table


def _choose(table: Comparison, metric: Metric, evidence: Mapping[str, Evidence]) -> tuple[str | None, Verdict]:
    """The best ranking of those clearly better than the baseline, by one metric; None if the log cannot tell.

    Clearly better are those whose paired interval excludes 0 by Holm's correction for their number: the first of m at
    1 − (1 − level) / m, the next at m − 1 and so on. Where estimators disagree about a ranking it counts nevertheless
    if they agree about the decision: about the sign of the difference, and its size within a factor of 2.
    """
    baseline, verdicts = table.baseline, {name: result[metric.name].verdict for name, result in table.items()}
    refused = {name: verdict for name, verdict in verdicts.items() if verdict is not None and not verdict.believe}
    differences = {name: table.differences[name, metric.name] for name in table if name != baseline}

    def agrees(name: str) -> bool:
        own, others = differences[name].difference, (
            one.mean - other.mean
            for one, other in (
                (evidence[name].snips, evidence[baseline].snips), (evidence[name].ips, evidence[baseline].ips)
            )
        )  # fmt: skip
        return all(abs(other - own) <= abs(own) for other in others)

    disagree = {name for name, verdict in refused.items() if verdict.check == AGREEMENT}
    certain = {name for name in differences if not {name, baseline} & disagree or agrees(name)}
    believed = {
        name: pair for name, pair in differences.items()
        if name in certain and not {name, baseline} & (set(refused) - disagree)
    }  # fmt: skip
    if refused and not believed:
        name = baseline if baseline in refused else next(iter(refused))
        return None, replace(refused[name], reason=f"for {name} {refused[name].reason}", caution="")
    own = verdicts[baseline]
    assert own is not None
    if not believed:
        return baseline, own
    clear = set[str]()
    while True:
        level = 1.0 - (1.0 - table.level) / max(len(believed) - len(clear), 1)
        more = {name for name, pair in believed.items() if name not in clear and pair.winner_at(level) == "first"}
        if not more:
            break
        clear |= more
    sign = 1.0 if metric.larger_is_better else -1.0
    name = max(clear or believed, key=lambda name: sign * differences[name].difference)
    figure = f"{metric.name} {number(differences[name].difference)}, {span(*differences[name].interval())}"
    others = len(differences) - len(believed)
    remark = f" ({others} of {len(differences)} rankings are not believable)" if others else ""
    if clear:
        best = f", the best of {len(clear)} that are" if len(clear) > 1 else ""
        reason = f"{name} is clearly better than {baseline} ({figure}){best}{remark}"
        return name, Verdict(True, reason, "confirm it on a random part of the users")
    if all(pair.winner == "second" for pair in believed.values()):
        reason = f"{baseline} is clearly better than the others (best of them: {figure}){remark}"
        return baseline, Verdict(True, reason, f"stay with {baseline}")
    reason = f"no ranking is clearly better than {baseline} (best: {name}, {figure}){remark}"
    return None, Verdict(False, reason, "collect a longer log, or show more at random")


def _estimators(evidence: Any, level: float) -> Iterator[OtherEstimate]:
    """The answer first, then the estimators that check it."""
    own = evidence.estimator.name
    named = {own: evidence.own, SNIPS.name: evidence.snips, IPS.name: evidence.ips}
    capped = {0.0: evidence.own, **evidence.capped(CAPS)}
    named |= {f"{own}, cap {cap:g}": one for cap, one in capped.items() if cap}
    for name, one in named.items():
        yield OtherEstimate(name, one.mean, *one.interval(level))
    if evidence.overlap_share > OVERLAP_LIMIT:
        yield OtherEstimate("worst case", np.nan, *evidence.worst_case(level))
    elif len(capped) > 1:
        cap, one = list(capped.items())[slope(list(capped.values()), level)]
        yield OtherEstimate(f"SLOPE: cap {cap:g}" if cap else "SLOPE: no cap", one.mean, *one.interval(level))


def _columns(by: Any) -> list[str]:
    """Those of a frame; none of anything else."""
    frame = nw.from_native(by, eager_only=True, pass_through=True)
    return [str(name) for name in frame.columns] if isinstance(frame, nw.DataFrame) else []


def segments_of(by: Any, ids: Ids) -> dict[str, Mask]:
    """The users, or items, of each label, by label in sorted order; those without one are a segment of their own.

    Numbers of more than 20 different values are cut into quarters of the catalog.
    """
    import pandas as pd

    what, columns = ids.column.removesuffix("_id"), _columns(by)
    given: list[Any]
    if isinstance(by, Mapping):
        codes, given = ids.encode(list(by)), list(by.values())
    elif columns:
        others = [name for name in columns if name != ids.column]
        if ids.column not in columns or len(others) != 1:
            raise InputError(f"by needs {ids.column} and one more column, got {', '.join(columns)[:200]}.")
        frame = nw.from_native(by, eager_only=True)
        codes, given = ids.encode(frame[ids.column].to_arrow()), frame[others[0]].to_list()
    else:
        try:
            codes, given = np.arange(len(ids), dtype=np.int32), list(by)
        except TypeError as error:
            raise InputError(f"by must be a frame, a mapping or labels, got {show(by)}.") from error
        if isinstance(by, str) or len(given) != len(ids):
            raise InputError(f"by needs one label per {what} ({plural(len(ids), what)}), got {show(by)}.")
    labels = pd.Series(given, index=codes, dtype=object)
    labels = labels[labels.index >= 0]
    if labels.index.has_duplicates:
        raise InputError(f"by names {'an' if what == 'item' else 'a'} {what} more than once; give one segment each.")
    if labels.empty:
        raise InputError(f"by names none of the {what}s of the log.")
    labels = labels.dropna()
    texts, numbers = labels.map(str), labels.infer_objects()
    if pd.api.types.is_numeric_dtype(numbers) and numbers.nunique() > MAX_LABELS:
        ends = np.quantile(numbers, [0.0, 0.25, 0.5, 0.75, 1.0])
        names = [f"{n}. {number(ends[n - 1])} to {number(ends[n])}" for n in (1, 2, 3, 4)]
        texts = pd.Series(np.take(names, np.searchsorted(ends[1:4], numbers)), index=numbers.index)
    every = texts.reindex(range(len(ids)), fill_value=NO_LABEL).to_numpy(object)
    return {label: every == label for label in sorted(set(every))}
