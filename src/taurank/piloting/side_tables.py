"""The small tables of a pilot: today's ranking, segments of users, and shelves; read and checked before any work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from taurank.data.log import Log
from taurank.data.reader import read_ids
from taurank.data.sources import Source, from_files
from taurank.errors import InputError, first_line, plural, show
from taurank.evaluation.ranking_tables import TableRanker
from taurank.evaluation.segments import segments_of
from taurank.piloting.plan import Plan
from taurank.piloting.shelves import Shelves

if TYPE_CHECKING:
    import pandas as pd

IDS = ("user_id", "item_id")
NUMBERS = ("score", "rank")


@dataclass(frozen=True, eq=False)
class SideTables:
    """``today`` ranks, ``segments`` has user_id and the plan's segment, ``shelves`` what each user can be shown."""

    today: TableRanker | None
    segments: pd.DataFrame | None
    shelves: Shelves | None

    @classmethod
    def read(cls, plan: Plan) -> SideTables:
        """A flaw of any of them is said before hours of training, not after."""
        today = _today(plan) if "today" in plan.tables else None
        segments = None if plan.segment is None else _segments(plan, plan.segment)
        return cls(today, segments, _shelves(plan) if "shelves" in plan.tables else None)

    def check(self, log: Log, plan: Plan) -> None:
        """They must be about the users and items of the log."""
        if self.segments is not None:
            segments_of(self.segments, log.users)
        if self.today is None:
            return
        for own, known in ((self.today.users, log.users), (self.today.items, log.items)):
            if not (known.encode(own.values) >= 0).any():
                raise InputError(
                    f"'{plan.tables['today']}' has no {own.column} of the log, for example {own.name(0)} there and "
                    f"{known.name(0)} in the log; use the same ids in all tables."
                )


def read_table(path: Path, plan: Plan, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pd.DataFrame:
    """These columns of a small table, by our names."""
    source = from_files(path)
    names = {name: _theirs(name, plan, source) for name in (*needed, *optional)}
    missing = [name for name in needed if names[name] not in source.columns]
    if missing:
        raise InputError(
            f"{source.name} has no column '{missing[0]}'; found: {', '.join(source.columns)}; name it in [columns]."
        )
    present = {name: theirs for name, theirs in names.items() if theirs in source.columns}
    frame: pd.DataFrame = pa.table(
        {name: _column(source, name, theirs) for name, theirs in present.items()}
    ).to_pandas()
    return frame


def _theirs(name: str, plan: Plan, source: Source) -> str:
    """Their name of a column: ours if the table has it."""
    return name if name in source.columns else plan.columns.get(name, name)


def _column(source: Source, name: str, theirs: str) -> pa.Array | pa.ChunkedArray:
    if name in IDS:
        return read_ids(source, theirs)
    whole = pa.chunked_array([batch.column(0) for batch in source.batches([theirs])])
    if name not in NUMBERS:
        return whole
    try:
        return pa.chunked_array([source.numerals(part).cast(pa.float64()) for part in whole.chunks], pa.float64())
    except pa.ArrowException as error:
        raise InputError(f"column '{theirs}' of {source.name} must be numbers: {first_line(error)}.") from error


def _today(plan: Plan) -> TableRanker:
    frame = read_table(plan.tables["today"], plan, IDS, NUMBERS)
    if not set(NUMBERS) & set(frame):
        raise InputError(f"'{plan.tables['today']}' has neither a column 'score' nor 'rank'; a ranking needs one.")
    return TableRanker(frame)


def _segments(plan: Plan, segment: str) -> pd.DataFrame:
    frame = read_table(plan.tables["users"], plan, ("user_id", segment))
    twice = frame["user_id"][frame["user_id"].duplicated()]
    if len(twice):
        raise InputError(
            f"'{plan.tables['users']}' repeats a user_id in {plural(len(twice), 'row')}, for example "
            f"{show(twice.iloc[0])}; keep one row per user."
        )
    return frame


def _shelves(plan: Plan) -> Shelves:
    of_user = read_table(plan.tables["shelves"], plan, ("user_id", "category"), ("score",))
    return Shelves(of_user, read_table(plan.tables["candidates"], plan, ("item_id", "category")))
