"""What a ranker is worth: means, spreads and intervals, as numbers, as a frame and in the shop's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank.data.ids import Ids
from taurank.errors import plural
from taurank.evaluation.bootstrap import Bootstrap
from taurank.evaluation.formulas import Formula
from taurank.evaluation.wording import PLAIN, Wording, aligned, number, overlap_sentence, span, wrapped

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Metric:
    """One metric of one ranker.

    ``per_user`` is each user's mean over the times, in catalogue order; ``per_time`` is the mean over all
    users at each time. ``overlap_share`` is the share of the weights on logged pairs that falls on pairs with a
    propensity within 1e-3 of 0 or 1 (None if the gains are not an estimate from a log).
    """

    formula: Formula
    per_user: Floats
    per_time: Floats
    wording: Wording = PLAIN
    overlap_share: float | None = None

    @property
    def name(self) -> str:
        return self.formula.name

    @property
    def smaller_is_better(self) -> bool:
        return not self.formula.larger_is_better

    @property
    def mean(self) -> float:
        """The mean over times of the mean over users."""
        return float(self.per_time.mean())

    @property
    def std(self) -> float:
        """The standard deviation over times (divided by their number; 0 for one time): the paper's ±."""
        _, exponent = np.frexp(np.abs(self.per_time).max())  # scaled by a power of 2, so that no square overflows
        return float(np.ldexp(np.ldexp(self.per_time, -exponent).std(), exponent))

    def interval(self, level: float = 0.95, *, threads: int | None = None) -> tuple[float, float]:
        """A bootstrap interval over users (BCa, 2,000 resamples, its own fixed seed)."""
        return self._bootstrap.interval(level, threads)

    @cached_property
    def _bootstrap(self) -> Bootstrap:
        return Bootstrap(self.per_user)

    def sentence(self) -> str:
        return self.wording.sentence(self.formula, self.mean)

    def __repr__(self) -> str:
        return f"Metric({self.name} {number(self.mean)})"

    def __str__(self) -> str:
        low_high = span(self.interval())
        sentence = self.sentence()
        return f"{self.name} {number(self.mean)} (95 % interval {low_high})" + (f"; {sentence}" if sentence else "")


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, Metric]):
    """Metrics of one ranker by name; ``print`` shows them with their intervals.

    ``unknown_users`` and ``unknown_items`` count the users and items of the gains that the ranker does not know.
    ``training_log`` is a warning if the gains come from the log the model was trained on, else "".
    """

    metrics: Mapping[str, Metric]
    users: Ids
    times: Ids
    gains_name: str
    unknown_users: int = 0
    unknown_items: int = 0
    training_log: str = ""

    def __getitem__(self, name: str) -> Metric:
        if name in self.metrics or not isinstance(name, str):
            return self.metrics[name]
        return self.metrics[name.upper()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def to_frame(self, level: float = 0.95, *, threads: int | None = None) -> pd.DataFrame:
        """One row per metric: ``metric, mean, std, low, high, smaller_is_better, overlap_share``."""
        import pandas as pd

        return pd.DataFrame([metric_row(metric, level, threads) for metric in self.values()])

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
        """The warning about metrics with too much weight on pairs without overlap; "" if there are none."""
        return overlap_sentence({metric.name: metric.overlap_share for metric in self.values()})

    def __repr__(self) -> str:
        means = ", ".join(f"{metric.name} {number(metric.mean)}" for metric in self.values())
        return f"Result({means}; measured by {self.gains_name})"

    def __str__(self) -> str:
        return "\n".join([*self._table(), *self._remarks()])

    def _table(self) -> list[str]:
        several = len(self.times) > 1
        rows = [["metric", "mean", *(["± over times"] if several else []), "95 % interval"]]
        for metric in self.values():
            spread = [number(metric.std)] if several else []
            rows.append([metric.name, number(metric.mean), *spread, span(metric.interval())])
        return aligned(rows)

    def _remarks(self) -> list[str]:
        sentences = [(metric.name, metric.sentence()) for metric in self.values()]
        remarks = [f"{name}: {sentence}" for name, sentence in sentences if sentence]
        if self.unknown_users:
            remarks.append(f"{plural(self.unknown_users, 'user')} unknown to the ranker: all items tied")
        if self.unknown_items:
            remarks.append(f"{plural(self.unknown_items, 'item')} unknown to the ranker: ranked last, tied")
        return wrapped([*remarks, *filter(None, (self.overlap_sentence(), self.training_log))])


def metric_row(metric: Metric, level: float, threads: int | None) -> dict[str, Any]:
    """A metric as a row of a frame."""
    low, high = metric.interval(level, threads=threads)
    return {
        "metric": metric.name,
        "mean": metric.mean,
        "std": metric.std,
        "low": low,
        "high": high,
        "smaller_is_better": metric.smaller_is_better,
        "overlap_share": np.nan if metric.overlap_share is None else metric.overlap_share,
    }
