"""Estimates of several rankings with their second opinions: as frames, as text and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taurank.evaluation.verdicts import Verdict
from taurank.evaluation.wording import aligned, number, span, wrapped

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """What ``estimate`` returns; ``print`` leads with the verdict.

    ``table`` has one row per (segment,) ranker, metric and estimator: ``ranker, metric, estimator, estimate, low,
    high, recommended, believe, reason, effective_purchases, exposure, overlap_share`` (and ``segment``). The rows
    with ``recommended`` true are the answer, the others the second opinions. ``differences`` has one row per
    (segment,) ranker other than the baseline and metric: ``ranker, baseline, metric, difference, low, high,
    better, believe``, paired by user, by the recommended estimator. ``choice`` is the ranker that is best by the
    first metric, None if the log cannot tell. ``verdict`` is about the choice, ``verdicts`` about each ranker and
    metric.
    """

    table: pd.DataFrame
    differences: pd.DataFrame
    baseline: str
    choice: str | None
    verdict: Verdict
    verdicts: Mapping[tuple[str, str], Verdict]

    @property
    def answers(self) -> pd.DataFrame:
        """The recommended rows of ``table``."""
        return self.table[self.table["recommended"]].reset_index(drop=True)

    def __repr__(self) -> str:
        return f"Estimate({self.verdict} {len(self.answers)} answers, {len(self.table)} rows)"

    def __str__(self) -> str:
        blocks = ["\n".join(wrapped([str(self.verdict), *self.cautions])), *self._blocks()]
        refused = [f"{who}, {metric}: {one}" for (who, metric), one in self.verdicts.items() if not one.believe]
        return "\n\n".join(filter(None, [*blocks, "\n".join(wrapped(refused))]))

    @property
    def cautions(self) -> list[str]:
        """What is to be known before the numbers of believed estimates, each caution once."""
        if len(self.verdicts) == 1:  # the verdict says it
            return []
        about: dict[str, list[str]] = {}
        for (who, metric), one in self.verdicts.items():
            if one.caution:
                about.setdefault(one.caution, []).append(f"{who}, {metric}")
        return [
            f"Caution: {caution}." if len(whom) == len(self.verdicts) else f"Caution: {'; '.join(whom)}: {caution}."
            for caution, whom in about.items()
        ]

    def _blocks(self) -> Iterator[str]:
        """One table per segment and metric, differences below."""
        keys = [name for name in ("segment", "metric") if name in self.table]
        for key, rows in self.table.groupby(keys, sort=False):
            shown = rows if key[0] in ("all", *self.table["metric"]) else rows[rows["recommended"]]
            lines = [["ranker", "estimator", "estimate", "interval"]]
            lines += [_line(row) for row in shown.to_dict("records")]
            yield "\n".join([", ".join(map(str, key)), *aligned(lines), *self._differences(keys, key)])

    def _differences(self, keys: list[str], key: tuple[Any, ...]) -> Iterator[str]:
        rows = self.differences
        for name, value in zip(keys, key, strict=True):
            rows = rows[rows[name] == value]
        for row in rows.to_dict("records"):
            word = {"yes": "better", "no": "worse"}.get(row["better"], "unclear") + ("" if row["believe"] else " (!)")
            low_high = span((row["low"], row["high"]))
            yield f"{row['ranker']} − {row['baseline']}: {number(row['difference'])} ({low_high}), {word}"

    def to_html(self) -> str:
        """The estimate as a page; needs the extra ``report``."""
        from taurank.report import page

        kind, label = ("good", "Believe it") if self.verdict.believe else ("poor", "Do not believe it")
        blocks = [page.verdict(kind, label, " ".join([str(self.verdict), *self.cautions]))]
        blocks += [page.table(self.answers, "The recommended estimate"), page.table(self.differences, "Differences")]
        blocks.append(page.fold("All estimators", [page.table(self.table)]))
        return page.render("What the rankings are worth", blocks)


def _line(row: Mapping[Any, Any]) -> list[str]:
    """A row of text; a number that is not to be believed is marked in front."""
    mark = "" if row["believe"] else "! "
    first = row["ranker"] if row["recommended"] else ""
    value = "" if row["estimate"] != row["estimate"] else number(row["estimate"])
    return [first, row["estimator"], mark + value, span((row["low"], row["high"]))]
