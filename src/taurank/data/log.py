"""Log: who was shown what, with which probability, and what happened.

One row is one user, item and time at which the item was recommended or something happened. A row that is
absent means: not recommended, nothing happened. So a log holds millions of rows, never users × items. The
catalog (all users, items and times, in order) belongs to the log: a user without rows still counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._checks import check_number
from taurank.data.cell_table import CellTable, Numbers, fingerprint
from taurank.data.eligibility import Eligibility
from taurank.data.events.summary import EventSummary
from taurank.data.ids import Catalog, Ids
from taurank.data.reader import (
    ANY_PROPENSITY,
    OUTCOME,
    OUTCOME_VALUE,
    PROPENSITY,
    TREATED,
    read_cells,
    read_limits,
)
from taurank.data.tables import open_table
from taurank.errors import InputError, plural

if TYPE_CHECKING:
    import pandas as pd


_NEEDED_TABLES = ("impressions", "outcomes")
RULES = (TREATED, OUTCOME, PROPENSITY, OUTCOME_VALUE)
LIMITED_RULES = (TREATED, OUTCOME, ANY_PROPENSITY, OUTCOME_VALUE)  # with tables of visits or candidates


@dataclass(frozen=True, eq=False)
class Log(CellTable):
    """A validated, frozen log; make one with ``from_frame``, ``read`` or ``from_events``.

    Attributes
    ----------
    user, item, time : positions in the catalog, one of each per row
    treated, outcome : 0 or 1
    propensity : P(treated = 1) at that cell, also where treated = 0; NaN where not recorded, None if no row has one
    value : what an outcome is worth, a number ≥ 0 per row (None: each counts as 1)
    eligibility : the cells that could have been recommended (by default all users × items × times)
    summary : what became of every event, for a log made by ``from_events``

    Examples
    --------
    >>> import pandas as pd
    >>> rows = {"user_id": ["ann", "bob"], "item_id": ["tea", "jam"], "treated": [1, 0], "outcome": [0, 1]}
    >>> log = Log.from_frame(pd.DataFrame(rows))
    >>> log.n_users, log.n_items, log.cells  # two rows of four cells: an absent row is not shown and not bought
    (2, 2, 4)
    """

    treated: npt.NDArray[np.int8]
    outcome: npt.NDArray[np.int8]
    propensity: npt.NDArray[np.float64] | None
    summary: EventSummary | None = None
    value: npt.NDArray[np.float64] | None = None

    @property
    def cells(self) -> int:
        """How many cells could have been recommended: users · items · times, or the eligible ones."""
        return self.eligibility.cells

    @classmethod
    def read(
        cls, data: Any, users: Any = None, items: Any = None, times: Any = None, *,
        id_types: Mapping[str, Any] | None = None, visits: Any = None, candidates: Any = None,
    ) -> Log:  # fmt: skip
        """A log from a pandas, Polars or PyArrow frame, or from Parquet or CSV.

        What ``write`` wrote brings its catalog along, also after another tool has filtered its rows; ids that occur
        beyond it follow it. The ids of a CSV are integers if all of them are written as integers, else text.

        Parameters
        ----------
        data : a frame, or a path (a file, a glob or a folder), with ``user_id, item_id, treated, outcome``, and
            optionally ``propensity``, ``value`` and ``time`` (or the research format's ``idx_user, idx_item,
            idx_time``)
        users, items, times : a catalog larger than what occurs, in its order; by default the ids that occur, sorted
        id_types : types of ids that override those of a CSV, such as ``{"user_id": "string"}``
        visits : frame or path with ``user_id``, optionally ``time``: only these users could have been shown anything
        candidates : frame or path with ``item_id``, optionally ``time``, or ``time`` and ``user_id``: only these
            items could have been shown. Both replace those that a file brings along. Rows of other cells are counted
            and set aside, and propensities of 0 or 1 are legal there

        Raises
        ------
        InputError : if rows break these rules; the message has the column, the number of rows and an example
        """
        given, source = (users, items, times), open_table(data)
        limited = visits is not None or candidates is not None
        rows = read_cells(source, given, LIMITED_RULES if limited else RULES, id_types=id_types)
        numbers, propensity = rows.numbers, rows.numbers.get("propensity")
        if propensity is not None and np.isnan(propensity).all():
            propensity = None
        log = cls(
            rows.catalog, rows.user, rows.item, rows.time, numbers["treated"], numbers["outcome"], propensity,
            timed=rows.timed, value=numbers.get("value"), eligibility=rows.eligibility,
        )  # fmt: skip
        if not limited:
            return log
        tables = {"visits": visits, "candidates": candidates}
        catalog, eligibility = read_limits(log.catalog, log.timed, given, tables)
        return log.reindex(*catalog.lists)._within(eligibility)

    from_frame = read

    def _within(self, eligible: Eligibility) -> Log:
        """The rows in eligible cells; the others are counted, and may have any propensity from 0 to 1."""
        inside = eligible.contains(self.user, self.item, self.time)
        if not inside.any():
            raise InputError(
                "no row of the log is in an eligible cell; do visits and candidates have its ids and times?"
            )
        kept, outside = self.take(inside), self.take(~inside)
        if kept.propensity is not None:
            rule = replace(PROPENSITY, must=f"{PROPENSITY.must} in eligible cells")
            rule.check(kept.propensity[~np.isnan(kept.propensity)])
        treated, outcomes = (int(np.count_nonzero(column)) for column in (outside.treated, outside.outcome))
        return replace(kept, eligibility=replace(eligible, outside=(treated, outcomes)))

    @classmethod
    def from_events(
        cls, impressions: Any, outcomes: Any, *, period: Any = "day", window: timedelta | str | None = None,
        users: Any = None, items: Any = None, combine: str = "same", columns: Mapping[str, str] | None = None,
        nulls: str = "refuse", timezone: str | None = None, incomplete: str = "drop", visits: Any = None,
        candidates: Any = None, slates: Any = None, id_types: Mapping[str, Any] | None = None,
        memory_limit: str | None = None, threads: int | None = None,
    ) -> Log:  # fmt: skip
        """One log from impressions and outcomes, with ``log.summary`` for what became of every event.

        A cell (user, item, period) is treated if an impression fell into it. Tables are frames or paths (Parquet or
        CSV; a file, a glob, a folder). A null propensity was not recorded; a few cells with one of 0 or 1 are set
        aside.

        Parameters
        ----------
        impressions : ``user_id, item_id, timestamp``, optionally ``propensity``, the probability that the item was
            shown
        outcomes : the same, optionally with ``value``, what each is worth; a negative one is a return, which cancels
            the latest outcomes of its user and item before it
        period : "day", "week", "month", a number of them ("2 weeks"), or a list of edges; periods are [start, end)
        window : None: the outcome of a cell is 1 if one happened in its period, so that both arms are measured over
            the same span. "3 days": an outcome belongs to the latest impression of its user and item within the
            window; choose a period about as long
        users, items : a catalog larger than what occurs
        combine : what the propensity of a cell with several events is: "same" refuses values that differ, "any" is 1
            − Π(1 − p), "first", "max"
        columns : our names to yours, ``{"user_id": "customer", "outcomes.timestamp": "bought_at"}``
        nulls : "refuse" nulls other than propensities, or "drop" and count them
        timezone : the clock of periods
        incomplete : "drop" a first or last period that the tables cover only in part, or "keep" it
        visits, candidates : ``user_id, timestamp``, and ``item_id``, optionally ``timestamp``, or both and
            ``user_id``: limit the cells that could have been recommended
        slates : ``user_id, item_id, timestamp, propensity``, optionally ``slate_id``: the candidates of every slate.
            A cell's propensity is then 1 − Π(1 − p) over the slates of its user in its period, also those on which
            the item was not drawn, and other cells are not eligible
        id_types : as in ``Log.read``
        memory_limit, threads : for DuckDB ("2GB"), which spills into the system's temporary folder (TMPDIR)

        Examples
        --------
        >>> import pandas as pd
        >>> day = pd.to_datetime(["2024-05-01", "2024-05-02", "2024-05-03"])
        >>> shown = pd.DataFrame({"user_id": [1, 1, 2], "item_id": ["tea", "jam", "tea"], "timestamp": day})
        >>> bought = shown[:1].assign(timestamp=day[0] + pd.Timedelta("2h"))
        >>> Log.from_events(shown, bought, incomplete="keep")
        Log(3 rows, 2 users, 2 items, 3 times, no propensities)
        """
        from taurank.data.events.build import build_rows, open_database
        from taurank.data.events.periods import Periods, check_zone, read_window
        from taurank.data.events.tables import EventOptions

        options = EventOptions(
            Periods.from_option(period), read_window(window), combine, {} if columns is None else columns, nulls,
            check_zone(timezone), incomplete, id_types or {},
        )  # fmt: skip
        given = {
            "impressions": impressions, "outcomes": outcomes, "visits": visits, "candidates": candidates,
            "slates": slates,
        }  # fmt: skip
        tables = {name: table for name, table in given.items() if table is not None or name in _NEEDED_TABLES}
        with open_database(memory_limit, threads) as database:
            return cls(**build_rows(database, tables, {"user_id": users, "item_id": items}, options))

    @classmethod
    def from_bandit_feedback(cls, feedback: Any, users: Any = None, *, positions: str = "apart") -> Log:
        """A log from a dictionary of obp: a round is a visit of a user, and recommends its action.

        Parameters
        ----------
        feedback : ``n_actions, action, reward, pscore``, and ``position`` or None; a reward that is not 0 or 1 is the
            outcome's value
        users : the user of each round, whose rounds are then counted by time (None: a round is a user of its own)
        positions : of several positions "apart" makes the time of the round, "item" a part of the item,
            "action@position"
        """
        from taurank.data.bandit import read_feedback

        return cls(**read_feedback(feedback, users, positions))

    def to_bandit_feedback(self, position: str | None = None) -> dict[str, Any]:
        """The recommended rows as rounds of a dictionary of obp; ``position="time"`` makes the time the position.

        Rows that were not recommended have no place in it.
        """
        rows, pscore = np.flatnonzero(self.treated), self.recorded_propensity("bandit feedback")
        return {
            "n_rounds": len(rows), "n_actions": self.n_items, "context": None, "action_context": None,
            "action": self.item[rows].astype(np.int64), "pscore": pscore[rows],
            "reward": self.outcome[rows] * (1 if self.value is None else self.value[rows]),
            "position": self.time[rows].astype(np.int64) if position == "time" else None,
        }  # fmt: skip

    def __repr__(self) -> str:
        missing = self.n_without_propensity
        recorded = {0: "", len(self): ", no propensities"}.get(missing, f", {missing:,} rows without propensity")
        return (
            f"Log({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times{recorded})"
        )

    def equals(self, other: Log) -> bool:
        """Same catalog and same rows in the same order, bit for bit."""
        return fingerprint(self) == fingerprint(other)

    def describe(self) -> pd.Series[Any]:
        """What is in the log: sizes, how much was recommended, what happened in each arm."""
        import pandas as pd

        limits, propensity, everything = self.eligibility, self.propensity, self.eligibility.is_everything
        summary: dict[str, Any] = {
            "rows": len(self), "users": self.n_users, "items": self.n_items, "times": self.n_times,
            "eligible cells": limits.cells,
            "treated, not eligible": limits.outside[0],
            "outcomes, not eligible": limits.outside[1],
            "treated rows": int(np.count_nonzero(self.treated)),
            f"treated share of {'all cells' if everything else 'eligible'}": self.treated_share,
            "positives, treated": int(np.count_nonzero(self.outcome[self.treated == 1])),
            "positives, control": int(np.count_nonzero(self.outcome[self.treated == 0])),
            "smallest propensity": None if propensity is None else np.nanmin(propensity, initial=1.0),
            "largest propensity": None if propensity is None else np.nanmax(propensity, initial=0.0),
            "rows without propensity": self.n_without_propensity,
        }  # fmt: skip
        return pd.Series(
            {name: n for name, n in summary.items() if not (everything and "eligible" in name)}, dtype=object
        )

    @property
    def n_without_propensity(self) -> int:
        """How many rows have no propensity."""
        return len(self) if self.propensity is None else int(np.count_nonzero(np.isnan(self.propensity)))

    @property
    def treated_share(self) -> float:
        """The share of eligible cells that were treated: treated rows / ``cells``."""
        return float(np.count_nonzero(self.treated) / self.cells)

    def recorded_propensity(self, purpose: str) -> npt.NDArray[np.float64]:
        """The propensities, or an error that says what needs them and how to estimate them."""
        missing = self.n_without_propensity
        if self.propensity is None or missing:
            which = "which this log does not have" if missing == len(self) else f"which {missing:,} rows lack"
            raise InputError(
                f"{purpose} needs the column 'propensity', {which}; record it, or "
                "estimate it: taurank.propensity.estimate(log, random_state=0), on the command line "
                "`taurank propensity estimate LOG --out FILE`."
            )
        return self.propensity

    def with_propensity(self, propensity: npt.ArrayLike) -> Log:
        """The log with other propensities, one number from 0 to 1 per row or NaN."""
        try:
            values = np.array(propensity, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise InputError("propensities must be numbers, one per row.") from error
        if values.shape != (len(self),):
            raise InputError(f"propensities must have one number per row, shape ({len(self)},), got {values.shape}.")
        PROPENSITY.check(values)
        return replace(self, propensity=values)

    def take(self, rows: npt.NDArray[Any]) -> Log:
        """Some rows, given by a mask or by their numbers, in that order; the catalog stays."""
        columns: dict[str, Any] = {name: values[rows] for name, values in self.row_columns().items()}
        return replace(self, summary=None, **columns)

    def reindex(self, users: Ids | None = None, items: Ids | None = None, times: Ids | None = None) -> Log:
        """The log in another catalog; rows and eligible cells of users, items and times outside it are left out."""
        given = zip((users, items, times), self.catalog.lists, strict=True)
        catalog = Catalog(*(own if new is None else new for new, own in given))
        if catalog == self.catalog:
            return self
        moves = self.catalog.positions_in(catalog)
        codes = {name: move[getattr(self, name)] for name, move in zip(("user", "item", "time"), moves, strict=True)}
        kept = np.minimum.reduce(list(codes.values())) >= 0
        columns: dict[str, Any] = {name: values[kept] for name, values in (self.row_columns() | codes).items()}
        eligibility = self.eligibility.reindex(catalog, *moves)
        return replace(self, catalog=catalog, eligibility=eligibility, summary=None, **columns)

    def select(self, users: Any = None, items: Any = None, times: Any = None) -> Log:
        """The part of the log with these users, items and times; its catalog has just them, in this order."""
        chosen = []
        for own, given in zip(self.catalog.lists, (users, items, times), strict=True):
            wanted = own if given is None else Ids(given, own.column)
            if not len(wanted):
                raise InputError(f"select needs at least one {own.column}.")
            chosen.append(own if given is None else Ids(own.decode(own.encode_known(wanted.values)), own.column))
        return self.reindex(*chosen)

    def split(self, *, times: Any = None, share: float | None = None) -> tuple[Log, Log]:
        """An earlier and a later part: ``times`` is how many of the last times, or which, go into the later one.

        ``share`` is that number as a share of all times. Users and items are the same in both parts.
        """
        if (times is None) == (share is None):
            raise InputError("split needs either times or share: log.split(times=4), log.split(share=0.2).")
        if share is not None:
            check_number("share", share, 0, 1)
            times = round(share * self.n_times)
        if isinstance(times, (int, np.integer)) and not isinstance(times, bool):
            is_late = np.arange(self.n_times) >= self.n_times - int(times)
        else:
            is_late = np.isin(np.arange(self.n_times), self.times.encode_known(times))
        if is_late.all() or not is_late.any():
            raise InputError(
                f"the log has {self.n_times:,} times, of which {np.count_nonzero(is_late):,} would be in the later "
                "part; both parts need at least one."
            )
        early, late = (Ids(self.times.values.filter(pa.array(part)), "time") for part in (~is_late, is_late))
        return self.reindex(times=early), self.reindex(times=late)

    def concat(self, later: Log) -> Log:
        """The rows of this log and then those of a later one; logs without a time become two times.

        New users, items and times follow the known ones, so that positions stay valid. A column that one of the logs
        lacks, such as the propensity, is left out.
        """
        if self.timed != later.timed:
            raise InputError("only one of the two logs has a column 'time'; give both the same columns.")
        logs = [self, later]
        if not self.timed:
            logs = [replace(log, catalog=replace(log.catalog, times=Ids([n], "time"))) for n, log in enumerate(logs)]
        ids = [old.extended(new) for old, new in zip(logs[0].catalog.lists, logs[1].catalog.lists, strict=True)]
        past, new = (log.reindex(*ids) for log in logs)
        old_cells, new_cells = (log.catalog.cell_index(log.user, log.item, log.time) for log in (past, new))
        again = np.flatnonzero(np.isin(new_cells, old_cells[np.isin(past.time, np.unique(new.time))]))
        if len(again):  # what was learned from must not come again
            codes = (new.user[again[0]], new.item[again[0]], new.time[again[0]])
            example = ", ".join(ids.name(int(code)) for ids, code in zip(new.catalog.lists, codes, strict=True))
            raise InputError(
                f"{plural(len(again), 'row')} of the log repeat a (user_id, item_id, time) of the past log, for "
                f"example ({example}); give only new rows."
            )
        first, second = past.row_columns(), new.row_columns()
        columns: dict[str, Any] = {
            name: np.concatenate((first[name], second[name])) if name in first and name in second else None
            for name in first | second
        }
        known, added = (past.times.encode(log.times.values) for log in logs)
        # a time of both logs belongs to those with rows in it, and to this one where none has any
        before = known[np.isin(known, past.time) | ~np.isin(known, new.time)]
        after = added[np.isin(added, new.time) | ~np.isin(added, known)]
        eligibility = past.eligibility.concat(new.eligibility, before, after)
        return replace(past, timed=True, eligibility=eligibility, summary=None, **columns)

    def row_columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays with one entry per row, by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in columns.items() if isinstance(values, np.ndarray)}

    def numbers(self) -> dict[str, Numbers | None]:
        numbers = {"treated": self.treated, "outcome": self.outcome, "propensity": self.propensity}
        return numbers if self.value is None else {**numbers, "value": self.value}
