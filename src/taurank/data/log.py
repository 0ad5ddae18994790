"""Log: who was shown what, with which probability, and what happened.

One row is one user, item and time at which the item was recommended or something happened. A row that is
absent means: not recommended, nothing happened. So a log holds millions of rows, never users × items. The
catalogue (all users, items and times, in order) belongs to the log: a user without rows still counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank.data import sources
from taurank.data.cell_table import CellTable
from taurank.data.ids import Catalogue, Codes
from taurank.data.reader import ColumnRule, Numbers, not_binary, not_probability, read_cells
from taurank.errors import InputError, plural

if TYPE_CHECKING:
    import pandas as pd

    from taurank.data.events.build import EventSummary


RULES = (
    ColumnRule("treated", np.int8, not_binary, "0 or 1"),
    ColumnRule("outcome", np.int8, not_binary, "0 or 1"),
    ColumnRule("propensity", np.float64, not_probability, "probabilities strictly between 0 and 1", required=False),
)


@dataclass(frozen=True, eq=False)
class Log(CellTable):
    """A validated, frozen log; make one with ``from_frame``, ``read`` or ``from_events``.

    ``user, item, time`` are positions in the catalogue, ``treated`` and ``outcome`` are 0 or 1, and
    ``propensity`` is P(treated = 1) at that cell, also where treated = 0 (None if it was not recorded).
    """

    catalogue: Catalogue
    user: Codes
    item: Codes
    time: Codes
    treated: npt.NDArray[np.int8]
    outcome: npt.NDArray[np.int8]
    propensity: npt.NDArray[np.float64] | None
    timed: bool = True
    summary: EventSummary | None = None

    def __post_init__(self) -> None:
        for array in (self.user, self.item, self.time, self.treated, self.outcome, self.propensity):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def from_frame(cls, frame: Any, users: Any = None, items: Any = None, times: Any = None) -> Log:
        """A log from a pandas, Polars or PyArrow frame.

        Columns ``user_id, item_id, treated, outcome``, and optionally ``propensity`` and ``time`` (or the
        research format's ``idx_user, idx_item, idx_time``). ``users``, ``items`` and ``times`` name a
        catalogue larger than what occurs, and its order is kept; without them the ids that occur, sorted.
        """
        return cls._from_source(sources.from_frame(frame), (users, items, times), {})

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        users: Any = None,
        items: Any = None,
        times: Any = None,
        id_types: Mapping[str, Any] | None = None,
    ) -> Log:
        """A log from Parquet or CSV: one file, a glob or a folder, in memory bounded by the result.

        A Parquet file written by ``write`` brings its catalogue along. The ids of a CSV are integers if all
        of them are written as integers, else text; ``id_types={"user_id": "string"}`` decides otherwise.
        """
        return cls._from_source(sources.from_files(path), (users, items, times), id_types or {})

    @classmethod
    def from_events(
        cls,
        impressions: Any,
        outcomes: Any,
        *,
        period: Any = "day",
        window: timedelta | str | None = None,
        users: Any = None,
        items: Any = None,
        combine: str = "same",
        id_types: Mapping[str, Any] | None = None,
        memory_limit: str | None = None,
        threads: int | None = None,
        temp_folder: str | os.PathLike[str] | None = None,
    ) -> Log:
        """A log from the two tables a shop has; ``taurank.events.build_log`` explains every option."""
        from taurank.data.events.build import build_log

        return build_log(
            impressions, outcomes, period=period, window=window, users=users, items=items, combine=combine,
            id_types=id_types, memory_limit=memory_limit, threads=threads, temp_folder=temp_folder,
        )  # fmt: skip

    @classmethod
    def _from_source(cls, source: sources.Source, given: tuple[Any, Any, Any], id_types: Mapping[str, Any]) -> Log:
        cells = read_cells(source, given, RULES, id_types=id_types)
        numbers = cells.numbers
        return cls(
            cells.catalogue, cells.user, cells.item, cells.time,
            numbers["treated"], numbers["outcome"], numbers.get("propensity"), cells.timed,
        )  # fmt: skip

    def __repr__(self) -> str:
        recorded = "" if self.propensity is not None else ", no propensities"
        return (
            f"Log({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times{recorded})"
        )

    def equals(self, other: Log) -> bool:
        """Same catalogue and same rows in the same order, bit for bit."""
        if self.catalogue != other.catalogue or self.timed != other.timed:
            return False
        names = ("user", "item", "time", "treated", "outcome", "propensity")
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return all(a is b is None or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)

    def describe(self) -> pd.Series[Any]:
        """What is in the log: sizes, how much was recommended, what happened in each arm."""
        import pandas as pd

        positives = self.outcome == 1
        facts: dict[str, Any] = {
            "rows": len(self),
            "users": self.n_users,
            "items": self.n_items,
            "times": self.n_times,
            "treated rows": int(np.count_nonzero(self.treated)),
            "treated share of all cells": np.count_nonzero(self.treated) / self.catalogue.n_cells,
            "positives, treated": int(np.count_nonzero(positives & (self.treated == 1))),
            "positives, control": int(np.count_nonzero(positives & (self.treated == 0))),
            "smallest propensity": None if self.propensity is None else self.propensity.min(initial=1.0),
            "largest propensity": None if self.propensity is None else self.propensity.max(initial=0.0),
        }
        return pd.Series(facts, dtype=object)

    def recorded_propensity(self, purpose: str) -> npt.NDArray[np.float64]:
        """The propensities, or an error that says what needs them and how to estimate them."""
        if self.propensity is None:
            raise InputError(
                f"{purpose} needs the column 'propensity', which this log does not have; record it, or "
                "estimate it: taurank.propensity.estimate(log, random_state=0), on the command line "
                "`taurank propensity estimate LOG --out FILE`."
            )
        return self.propensity

    def with_propensity(self, propensity: npt.ArrayLike) -> Log:
        """The same log with these propensities, one per row."""
        try:
            values = np.array(propensity, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise InputError("propensities must be numbers, one per row.") from error
        if values.shape != (len(self),):
            raise InputError(f"{len(self):,} propensities are needed, one per row, not {values.shape}.")
        wrong = not_probability(values)
        if wrong.any():
            raise InputError(
                "column 'propensity' must hold probabilities strictly between 0 and 1: wrong in "
                f"{plural(int(np.count_nonzero(wrong)), 'row')}, for example {values[wrong][0]}."
            )
        return replace(self, propensity=values)

    def numbers(self) -> dict[str, Numbers | None]:
        return {"treated": self.treated, "outcome": self.outcome, "propensity": self.propensity}
