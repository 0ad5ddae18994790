"""The result of a pilot, and its rankings as one table in purchases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from taurank.data.log import Log
from taurank.evaluation.estimates import Estimate
from taurank.piloting.answer import Answer
from taurank.piloting.gate import Gate
from taurank.piloting.learning import Ranking
from taurank.piloting.plan import Plan


@dataclass(frozen=True, eq=False, repr=False)
class Pilot:
    """The result of a pilot; ``print`` leads with the answer.

    ``estimate`` compares the rankings on the last weeks, ``test``; ``rankings`` were fitted to the weeks before. If a
    learner was chosen, ``model`` is fitted to all of them. ``folder`` has ``report.html``, the plan and the stages,
    and with a model also ``model`` and ``recommendations.parquet``.
    """

    answer: Answer
    estimate: Estimate
    gate: Gate
    rankings: Mapping[str, Ranking]
    model: Ranking | None
    plan: Plan
    log: Log
    test: Log
    folder: Path

    def __repr__(self) -> str:
        return f"Pilot({self.answer.sentence!r})"

    def __str__(self) -> str:
        lines = [self.answer.sentence, f"Next: {self.answer.next_step}."]
        if self.answer.experiment is not None:
            lines.append(f"To find out: {self.answer.experiment}")
        lines += self.estimate.cautions
        return "\n".join([*lines, "", estimates(self).to_string(index=False), ""])


def estimates(result: Pilot, segment: str = "all") -> pd.DataFrame:
    """The recommended estimate of every ranking and its difference from the baseline, in purchases."""
    k, compared = result.plan.k, result.estimate
    own = of_segment(compared.table, segment, result)
    own = own[own["recommended"]].set_index("ranker")
    other = of_segment(compared.differences, segment, result).set_index("ranker")
    rows = []
    for name in own.index:
        row: Any = own.loc[name]
        apart: Any = other.loc[name] if name in other.index else None
        rows.append({
            "ranking": name, "purchases": number(k * row["estimate"]),
            "interval": span(k * row["low"], k * row["high"]), f"minus {compared.baseline}":
            "" if apart is None else number(k * apart["difference"]),
            "paired interval": "" if apart is None else span(k * apart["low"], k * apart["high"]),
            "believe": "yes" if row["believe"] else "no",
        })  # fmt: skip
    return pd.DataFrame(rows)


def of_segment(frame: pd.DataFrame, segment: str, result: Pilot) -> pd.DataFrame:
    frame = frame[frame["metric"] == result.plan.metric]
    return frame[frame["segment"] == segment] if "segment" in frame else frame


def number(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.3f}"


def span(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"
