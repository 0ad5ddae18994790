"""Several rankers on the same gains: paired differences, user by user, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank.errors import plural
from taurank.evaluation.bootstrap import Bootstrap
from taurank.evaluation.results import MetricResult, Result, metric_row
from taurank.evaluation.verdicts import Verdict
from taurank.evaluation.wording import COLUMNS, aligned, number, overlap_sentence, span, training_sentence, wrapped

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_SHORTEST_NAME = 8  # what is left of a long name where the figures are wide


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two rankers on the same gains: the paired difference ``first − second`` of one metric."""

    first: MetricResult
    second: MetricResult
    overlap: str = ""
    training_log: str = ""

    @property
    def per_user(self) -> Floats:
        return self.first.per_user - self.second.per_user

    @property
    def difference(self) -> float:
        """first − second, the mean over times of the mean over users, or over all visits."""
        return self.first.mean - self.second.mean

    def interval(self, level: float = 0.95, *, threads: int | None = None) -> tuple[float, float]:
        """The interval of the difference, paired: the same users, and for estimates the same rows of the log."""
        first, second = self.first.uncertainty, self.second.uncertainty
        if first is None or second is None:
            return self._bootstrap.interval(level, threads)
        return first.minus(second).interval(level)

    @cached_property
    def _bootstrap(self) -> Bootstrap:
        return Bootstrap(self.first.contributions - self.second.contributions)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first ranker's estimate, or on the second's if that one alone is refused."""
        verdicts = [one for one in (self.first.verdict, self.second.verdict) if one is not None]
        return next((one for one in verdicts if not one.believe), next(iter(verdicts), None))

    def winner(self, level: float = 0.95) -> str | None:
        """ "first" or "second" if the interval excludes 0, else None."""
        low, high = self.interval(level)
        if not (low > 0 or high < 0):
            return None
        return "first" if (low > 0) == self.first.formula.larger_is_better else "second"

    def __repr__(self) -> str:
        return f"Comparison({self.first.name} {number(self.first.mean)} against {number(self.second.mean)})"

    def __str__(self) -> str:
        winner = self.winner()
        answer = f"the {winner} ranker is better" if winner else "no clear difference"
        sentence = self.first.wording.sentence(self.first.formula, self.difference)
        if sentence and self.first.formula.larger_is_better:
            sentence = f"difference, {sentence}"
        head = (
            f"{self.first.name}: {number(self.first.mean)} against {number(self.second.mean)}, a difference of "
            f"{number(self.difference)} (95 % interval {span(self.interval())}): {answer}"
        )
        verdict = self.verdict
        lead = "" if verdict is None else str(verdict)
        return "\n".join(wrapped(filter(None, [lead, head, sentence, self.overlap, self.training_log])))


@dataclass(frozen=True, eq=False, repr=False)
class ResultTable(Mapping[str, Result]):
    """Results of several rankers by name, with paired differences from one of them, the ``baseline``."""

    results: Mapping[str, Result]
    baseline: str
    _pairs: dict[tuple[str, str], Comparison] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def against_baseline(self, name: str, metric: str) -> Comparison:
        """The paired difference of a ranker from the baseline in one metric."""
        pair = self[name][metric], self[self.baseline][metric]
        return self._pairs.setdefault((name, pair[0].name), Comparison(*pair))

    def to_frame(self, level: float = 0.95, *, threads: int | None = None) -> pd.DataFrame:
        """One row per ranker and metric: the columns of ``Result.to_frame`` and the difference from the baseline.

        ``difference, difference_low, difference_high`` are those of the ranker minus the baseline (0 in its own
        rows), ``better`` says "yes", "no" or, if the interval includes 0, "unclear" ("" in the baseline's rows).
        """
        import pandas as pd

        rows = [
            {"ranker": name, **metric_row(metric, level, threads), **self._difference(name, metric, level, threads)}
            for name, result in self.items()
            for metric in result.values()
        ]
        return pd.DataFrame(rows)

    def _difference(self, name: str, metric: MetricResult, level: float, threads: int | None) -> dict[str, Any]:
        if name == self.baseline:
            return {"difference": 0.0, "difference_low": 0.0, "difference_high": 0.0, "better": ""}
        pair = self.against_baseline(name, metric.name)
        low, high = pair.interval(level, threads=threads)
        better = {"first": "yes", "second": "no", None: "unclear"}[pair.winner(level)]
        return {"difference": pair.difference, "difference_low": low, "difference_high": high, "better": better}

    def __repr__(self) -> str:
        return f"ResultTable({', '.join(self)}; baseline {self.baseline})"

    def __str__(self) -> str:
        results = list(self.values())
        head = f"measured by {results[0].gains_name}; diff.: minus {self.baseline}, paired by user"
        blocks = ["\n".join(self._block(metric)) for metric in results[0]]
        remarks = "\n".join(wrapped([*self._unknown(), *self._warnings()]))
        verdicts = "\n".join(wrapped(self.verdict_sentences()))
        return "\n\n".join(filter(None, [verdicts, *wrapped([head]), *blocks, remarks]))

    def verdict_sentences(self) -> list[str]:
        """One sentence for all rankers to be believed, and one for each that is not; none if not estimated."""
        judged = {name: result.verdict for name, result in self.items() if result.verdict is not None}
        refused = [f"{name}, {self[name].verdict_sentence()}" for name, one in judged.items() if not one.believe]
        believed = [name for name, one in judged.items() if one.believe]
        sure = [f"{', '.join(believed)}: {judged[believed[0]]}"] if believed else []
        return [*refused, *sure]

    def _block(self, metric: str) -> list[str]:
        """One metric of all rankers, no wider than a terminal of 80 columns."""
        smaller = not self[self.baseline][metric].formula.larger_is_better
        rows = [["mean", "95 % interval", "diff.", "95 % interval", ""]]
        for name, result in self.items():
            cells = [number(result[metric].mean), span(result[metric].interval())]
            rows.append([*cells, *self._difference_cells(name, metric)])
        figures = aligned(rows)
        width = max(_SHORTEST_NAME, COLUMNS - 2 - max(map(len, figures)))
        names = [["ranker"], *([_shortened(name, width)] for name in self)]
        title = metric + (" (smaller is better)" if smaller else "")
        return [title, *aligned([[*name, line] for name, line in zip(names, figures, strict=True)])]

    def _difference_cells(self, name: str, metric: str) -> list[str]:
        if name == self.baseline:
            return ["", "", ""]
        pair = self.against_baseline(name, metric)
        verdict = {"first": "better", "second": "worse", None: ""}[pair.winner()]
        return [number(pair.difference), span(pair.interval()), verdict]

    def _unknown(self) -> Iterator[str]:
        for name, result in self.items():
            counts = plural(result.unknown_users, "user"), plural(result.unknown_items, "item")
            if result.unknown_users or result.unknown_items:
                yield f"{name}: {' and '.join(counts)} unknown to the ranker"

    def _warnings(self) -> list[str]:
        return [sentence for sentence in (worst_overlap(self.results), training_log(self.results)) if sentence]


def worst_overlap(results: Mapping[str, Result]) -> str:
    """The warning about overlap for all rankers together: of each metric the largest share."""
    shares: dict[str, float] = {}
    for result in results.values():
        for metric in result.values():
            shares[metric.name] = max(shares.get(metric.name, 0.0), metric.overlap_share or 0.0)
    return overlap_sentence(shares)


def training_log(results: Mapping[str, Result]) -> str:
    """The warning about rankers that are measured on their training log; "" if there are none."""
    names = [name for name, result in results.items() if result.training_log]
    return training_sentence(names) if names else ""


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
