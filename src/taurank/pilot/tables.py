"""The small tables of a pilot, read and checked before any work: today's ranking, segments, categories of users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from taurank.data.features import Features
from taurank.data.log import Log
from taurank.data.reader import read_ids
from taurank.data.tables import open_table
from taurank.errors import InputError, first_line, plural, show
from taurank.evaluation.evaluate import segments_of
from taurank.evaluation.rankers import TableRanker
from taurank.pilot.config import PilotConfig

if TYPE_CHECKING:
    import pandas as pd

IDS = ("user_id", "item_id")
NUMBERS = ("score", "rank")


@dataclass(frozen=True, eq=False)
class SmallTables:
    """``today`` ranks, ``segments`` has user_id and a label, ``categories`` what each user can be shown."""

    today: TableRanker | None
    segments: pd.DataFrame | None
    categories: Features | None
    item_categories: pd.DataFrame | None = None
    item_segments: pd.DataFrame | None = None

    @classmethod
    def read(cls, config: PilotConfig) -> SmallTables:
        """Read the tables; problems are reported before hours of training, not after."""
        tables, options = config.tables, config.pilot

        def read(name: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pd.DataFrame | None:
            path = getattr(tables, name)
            return None if path is None else read_table(path, config, needed, optional)

        today, of_user = read("today", IDS, NUMBERS), read("categories", ("user_id", "category"), ("score",))
        if today is not None and not set(NUMBERS) & set(today):
            raise InputError(f"'{tables.today}' has neither a column 'score' nor 'rank'; a ranking needs one.")
        segments = None if options.segment is None else read("users", ("user_id", options.segment))
        repeated = [] if segments is None else segments["user_id"][segments["user_id"].duplicated()].tolist()
        if repeated:
            raise InputError(
                f"'{tables.users}' repeats a user_id in {plural(len(repeated), 'row')}, for example "
                f"{show(repeated[0])}; keep one row per user."
            )
        names = ("item_id", "category")
        items = read("candidates", names) if of_user is not None else read("candidates", names[:1], names[1:])
        items = None if items is None or "category" not in items else items.drop_duplicates("item_id")
        item_segments = None
        if options.item_segment is not None:
            item_segments = read("candidates", ("item_id", options.item_segment))
        if item_segments is not None:
            item_segments = item_segments.drop_duplicates("item_id").dropna()
        categories = None if of_user is None else Features(items=items, categories=of_user)
        return cls(None if today is None else TableRanker(today), segments, categories, items, item_segments)

    def check(self, log: Log, config: PilotConfig) -> None:
        """They must be about the users and items of the log."""
        if self.segments is not None:
            segments_of(self.segments, log.users)
        if self.today is None:
            return
        for own, known in ((self.today.users, log.users), (self.today.items, log.items)):
            if not (known.encode(own.values) >= 0).any():
                raise InputError(
                    f"'{config.tables.today}' has no {own.column} of the log, for example {own.name(0)} there and "
                    f"{known.name(0)} in the log; use the same ids in all tables."
                )


def read_table(
    path: Path, config: PilotConfig, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> pd.DataFrame:
    """These columns of a small table, by our names; ``[columns]`` has theirs where the table lacks ours."""
    source = open_table(path)
    names = {
        name: name if name in source.columns else config.columns.get(name, name) for name in (*needed, *optional)
    }
    missing = [name for name in needed if names[name] not in source.columns]
    if missing:
        raise InputError(
            f"{source.name} has no column '{missing[0]}'; found: {', '.join(source.columns)}; name it in [columns]."
        )
    columns = {}
    for name, theirs in names.items():
        if name in IDS:
            columns[name] = read_ids(source, theirs)
        elif theirs in source.columns:
            columns[name] = pa.chunked_array([batch.column(0) for batch in source.batches([theirs])])
        if name in NUMBERS and name in columns:
            try:
                parts = [source.numerals(part).cast(pa.float64()) for part in columns[name].chunks]
            except pa.ArrowException as error:
                raise InputError(
                    f"column '{theirs}' of {source.name} must be numbers: {first_line(error)}."
                ) from error
            columns[name] = pa.chunked_array(parts, pa.float64())
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    return frame
