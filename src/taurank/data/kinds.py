"""Several kinds of recommendation in one table: a mailer, a display, and the log of each.

The effect of a kind is that of recommending by this kind against not doing so, with the other kinds as they
happened: they are part of the background, as the weather is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from taurank.data import sources
from taurank.data.log import Log
from taurank.errors import InputError, plural, show

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Kinds:
    """A log for each kind of recommendation, all with the same catalog; make one with ``from_frame``."""

    logs: dict[str, Log]

    @classmethod
    def from_frame(cls, frame: Any, users: Any = None, items: Any = None, times: Any = None) -> Kinds:
        """From the columns of a log and ``kind``: one row per cell and kind.

        A row whose kind is missing is an outcome without any recommendation. In the log of a kind, a cell that was
        only recommended by other kinds is untreated and keeps its outcome; its propensity by this kind is
        not recorded (``taurank.propensity.estimate`` fills it in).
        """
        rows: pd.DataFrame = sources.to_arrow(frame).to_pandas()
        if "kind" not in rows:
            raise InputError(f"several kinds need a column 'kind'; the frame has {', '.join(map(str, rows))}.")
        cell = [name for name in ("user_id", "item_id", "time") if name in rows]
        if missing := {"user_id", "item_id", "treated", "outcome"} - set(rows):
            raise InputError(f"the frame has no column '{min(missing)}'.")
        _check_outcomes(rows, cell)
        names = sorted(set(rows["kind"].dropna().astype(str)))
        if not names:
            raise InputError("column 'kind' has no value; name the kind of every recommendation.")
        whole = Log.from_frame(rows.drop_duplicates(cell).drop(columns="kind"), users, items, times)
        ids = (whole.users.values, whole.items.values, whole.times.values if whole.timed else None)
        return cls({name: Log.from_frame(_rows_of(rows, cell, name), *ids) for name in names})

    @property
    def names(self) -> list[str]:
        return list(self.logs)

    def __getitem__(self, kind: str) -> Log:
        try:
            return self.logs[kind]
        except KeyError:
            raise InputError(f"there is no kind '{kind}'; known: {', '.join(self.logs)}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.logs)


def _check_outcomes(rows: pd.DataFrame, cell: list[str]) -> None:
    spread = rows.groupby(cell)["outcome"].agg(["min", "max"])
    unlike = spread[spread["min"] != spread["max"]]
    if len(unlike):
        raise InputError(
            f"{plural(len(unlike), 'cell')} ({', '.join(cell)}) have rows with different outcomes, for example "
            f"{show(unlike.index[0])}; give all rows of a cell its outcome."
        )


def _rows_of(rows: pd.DataFrame, cell: list[str], name: str) -> pd.DataFrame:
    """The rows of a kind, and what else was bought as untreated rows."""
    import pandas as pd

    is_mine = rows["kind"].astype(str) == name
    mine = rows[is_mine].drop(columns="kind")
    known = pd.MultiIndex.from_frame(mine[cell])
    others = rows[~is_mine & (rows["outcome"] == 1)].drop_duplicates(cell).drop(columns="kind")
    others = others[~pd.MultiIndex.from_frame(others[cell]).isin(known)].assign(treated=0)
    if "propensity" in others:
        others["propensity"] = np.nan
    return pd.concat([mine, others], ignore_index=True)
