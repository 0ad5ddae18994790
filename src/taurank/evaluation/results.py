"""What a measurement says: means, spreads and intervals, as numbers, as a frame and in the shop's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from taurank.data.ids import Ids
from taurank.evaluation import bootstrap

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

OVERLAP_LIMIT = 0.05


@dataclass(frozen=True)
class Wording:
    """How a metric is said: "top 10: 1.03 extra purchases per user and week"."""

    depth: int | None = None  # the k of P@k
    form: str = ""  # the formula's name: P@k, DCG, AR, AUC
    extra: bool = True  # gains are effects: *extra* purchases
    per: str = "per user"

    def sentence(self, value: float) -> str:
        what = ("extra purchases " if self.extra else "purchases ") + self.per
        if self.form == "P@k" and self.depth is not None:
            return f"top {self.depth}: {number(value * self.depth)} {what}"
        if self.form == "DCG":
            return f"whole list, less by position: {number(value)} {what}"
        return "smaller is better" if self.form == "AR" else ""


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric of one ranker.

    ``per_user`` is each user's mean over the times, in catalogue order; ``per_time`` is the mean over all
    users at each time. ``overlap_share`` is the share of Σ|λ| over the logged pairs that falls on pairs with
    a propensity within 1e-3 of 0 or 1 (None if the gains are no estimate).
    """

    name: str
    per_user: Floats
    per_time: Floats
    wording: Wording
    smaller_is_better: bool = False
    overlap_share: float | None = None
    threads: int = 1

    @property
    def mean(self) -> float:
        """The mean over times of the mean over users."""
        return float(self.per_time.mean())

    @property
    def std(self) -> float:
        """The standard deviation over times (divided by their number; 0 for one time): the paper's ±."""
        return float(self.per_time.std())

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A bootstrap interval over users (BCa, 2,000 resamples, its own fixed seed)."""
        return bootstrap.interval(self.per_user, self._resampled, level)

    @cached_property
    def _resampled(self) -> Floats:
        return bootstrap.resampled_means(self.per_user, threads=self.threads)

    def __str__(self) -> str:
        low, high = self.interval()
        said = self.wording.sentence(self.mean)
        head = f"{self.name} {number(self.mean)} (95 % interval {number(low)} to {number(high)})"
        return head + (f"; {said}" if said else "")


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, Metric]):
    """Metrics of one ranker by name; ``print`` shows them with their intervals.

    ``unknown_users`` and ``unknown_items`` count what the ranker did not know of the gains' catalogue.
    """

    metrics: Mapping[str, Metric]
    users: Ids
    times: Ids
    gains_name: str
    unknown_users: int = 0
    unknown_items: int = 0

    def __getitem__(self, name: str) -> Metric:
        return self.metrics[name.upper()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """One row per metric: ``metric, mean, std, low, high, smaller_is_better, overlap_share``."""
        import pandas as pd

        rows = []
        for metric in self.values():
            low, high = metric.interval(level)
            share = np.nan if metric.overlap_share is None else metric.overlap_share
            rows.append((metric.name, metric.mean, metric.std, low, high, metric.smaller_is_better, share))
        names = ["metric", "mean", "std", "low", "high", "smaller_is_better", "overlap_share"]
        return pd.DataFrame(rows, columns=names)

    def per_user_frame(self) -> pd.DataFrame:
        """``user_id`` and a column per metric."""
        return self._frame(self.users, {m.name: m.per_user for m in self.values()})

    def per_time_frame(self) -> pd.DataFrame:
        """``time`` and a column per metric."""
        return self._frame(self.times, {m.name: m.per_time for m in self.values()})

    def _frame(self, ids: Ids, columns: dict[str, Floats]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame({ids.column: ids.values.to_pandas(), **columns})

    def overlap_sentence(self) -> str:
        """What to say where too much of the weight lies on pairs without overlap; "" if nothing."""
        bad = {m.name: m.overlap_share for m in self.values() if (m.overlap_share or 0) > OVERLAP_LIMIT}
        if not bad:
            return ""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in bad.items())
        return (
            f"bad overlap: of the weight of the logged pairs, this share lies on pairs with a propensity "
            f"within 0.001 of 0 or 1, where one arm is never seen: {shares}; these estimates can be far off "
            "whatever the cap."
        )

    def __str__(self) -> str:
        lines = [*_table(self), *self._remarks()]
        return "\n".join(lines)

    __repr__ = __str__

    def _remarks(self) -> list[str]:
        remarks = [m.wording.sentence(m.mean) for m in self.values()]
        named = [f"{m.name}: {said}" for m, said in zip(self.values(), remarks, strict=True) if said]
        if self.unknown_users:
            named.append(f"{self.unknown_users:,} users unknown to the ranker: all items tied")
        if self.unknown_items:
            named.append(f"{self.unknown_items:,} items unknown to the ranker: ranked last, tied")
        overlap = self.overlap_sentence()
        return [*named, overlap] if overlap else named


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two rankers on the same gains: the paired difference ``first − second`` of one metric."""

    first: Metric
    second: Metric
    overlap: str = ""

    @property
    def per_user(self) -> Floats:
        return self.first.per_user - self.second.per_user

    @property
    def difference(self) -> float:
        """first − second, the mean over times of the mean over users."""
        return self.first.mean - self.second.mean

    @cached_property
    def _resampled(self) -> Floats:
        return bootstrap.resampled_means(self.per_user, threads=self.first.threads)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A bootstrap interval of the difference: the same users are drawn for both rankers."""
        return bootstrap.interval(self.per_user, self._resampled, level)

    def winner(self, level: float = 0.95) -> str | None:
        """ "first" or "second" if the interval leaves 0 out, else None."""
        low, high = self.interval(level)
        if not (low > 0 or high < 0):
            return None
        return "first" if (low > 0) != self.first.smaller_is_better else "second"

    def __str__(self) -> str:
        low, high = self.interval()
        winner = self.winner()
        verdict = f"the {winner} ranker is better" if winner else "no clear difference"
        said = self.first.wording.sentence(self.difference)
        lines = [
            f"{self.first.name}: {number(self.first.mean)} against {number(self.second.mean)}, a difference "
            f"of {number(self.difference)} (95 % interval {number(low)} to {number(high)}): {verdict}",
            *([f"difference, {said}"] if said and not self.first.smaller_is_better else []),
            *(["smaller is better"] if self.first.smaller_is_better else []),
            *([self.overlap] if self.overlap else []),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(result: Result) -> list[str]:
    several = len(result.times) > 1
    head = ["metric", "mean", *(["± over times"] if several else []), "95 % interval"]
    rows = [head]
    for metric in result.values():
        low, high = metric.interval()
        spread = [number(metric.std)] if several else []
        rows.append([metric.name, number(metric.mean), *spread, f"{number(low)} to {number(high)}"])
    widths = [max(len(row[c]) for row in rows) for c in range(len(head))]
    cells = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]
