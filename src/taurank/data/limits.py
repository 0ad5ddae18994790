"""Tables of visits and candidates beside the rows of a log: which of them are eligible, and which are set aside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.data import sources
from taurank.data.columns import ID_COLUMNS, PROPENSITY, WrongRows, wrong_values
from taurank.data.eligibility import Eligibility
from taurank.data.id_column import IdColumn, catalog_of
from taurank.data.ids import Catalog, Codes
from taurank.data.reader import Cells
from taurank.errors import InputError, show

_NEEDED = {"visits": "user_id", "candidates": "item_id"}
Positions = dict[str, Codes]


def limited(cells: Cells, visits: Any, candidates: Any, given: Sequence[Any]) -> tuple[Cells, Eligibility]:
    """The eligible rows, and the eligible cells.

    ``given`` has the caller's users, items and times; where it has none, ids that occur in a table only follow those
    of the log. Rows outside are counted, and may have any propensity from 0 to 1.
    """
    tables: dict[str, Positions] = {}
    catalog = cells.catalog
    for name, table in (("visits", visits), ("candidates", candidates)):
        if table is not None:
            catalog, tables[name] = _read(name, table, catalog, cells.timed, given)
    eligible = _eligible(catalog, tables)
    inside = eligible.contains(cells.user, cells.item, cells.time)
    if not inside.any():
        raise InputError("no row of the log is in an eligible cell; do visits and candidates have its ids and times?")
    treated, outcome = (int(np.count_nonzero(cells.numbers[name][~inside])) for name in ("treated", "outcome"))
    kept = _rows(replace(cells, catalog=catalog), inside)
    _refuse_certain(kept.numbers.get("propensity"))
    return kept, replace(eligible, treated_outside=treated, outcomes_outside=outcome)


def _eligible(catalog: Catalog, tables: dict[str, Positions]) -> Eligibility:
    visits, candidates = tables.get("visits"), tables.get("candidates")
    return Eligibility.of(
        catalog,
        None if visits is None else (visits["user_id"], visits.get("time")),
        None if candidates is None else (candidates.get("user_id"), candidates["item_id"], candidates.get("time")),
    )


def _read(name: str, table: Any, catalog: Catalog, timed: bool, given: Sequence[Any]) -> tuple[Catalog, Positions]:
    """A table as positions in a catalog that has its ids."""
    source = sources.from_files(table) if isinstance(table, (str, os.PathLike)) else sources.from_frame(table)
    if _NEEDED[name] not in source.columns:
        raise InputError(f"the {name} have no column '{_NEEDED[name]}'; found: {', '.join(source.columns)}.")
    if "time" in source.columns and not timed:
        raise InputError(f"the {name} have a column 'time', but the log has none.")
    wanted = [column for column in ID_COLUMNS if column in source.columns and (name, column) != ("visits", "item_id")]
    readers, codes = _columns(name, source, wanted)
    lists = dict(zip(ID_COLUMNS, (catalog.users, catalog.items, catalog.times), strict=True))
    own = dict(zip(ID_COLUMNS, given, strict=True))
    found: Positions = {}
    for column, reader in readers.items():
        known = lists[column].values
        fixed = None if own[column] is None else known
        lists[column], positions = catalog_of(reader, column, fixed, known, source.text, None)
        found[column] = positions[codes[column]]
        unknown = int(np.count_nonzero(found[column] < 0))
        if unknown:
            raise InputError(f"{name}: {lists[column].unknown(unknown, _first_unknown(reader, positions))}")
    return Catalog(lists["user_id"], lists["item_id"], lists["time"]), found


def _columns(name: str, source: sources.Source, wanted: list[str]) -> tuple[dict[str, IdColumn], Positions]:
    """The id columns, and a provisional code for each of their rows."""
    wrong_rows = WrongRows()
    readers = {column: IdColumn(column, wrong_rows) for column in wanted}
    codes: dict[str, list[Codes]] = {column: [] for column in wanted}
    for batch in source.batches(wanted):
        for column, reader in readers.items():
            codes[column].append(reader.add(batch.column(column)))
    wrong_rows.refuse()
    if not codes[wanted[0]]:
        raise InputError(f"the {name} have no rows.")
    return readers, {column: np.concatenate(parts) for column, parts in codes.items()}


def _first_unknown(reader: IdColumn, positions: Codes) -> Any:
    values, merged = reader.finish()
    return values[int(merged[int(np.argmax(positions < 0))])]


def _rows(cells: Cells, chosen: npt.NDArray[np.bool_]) -> Cells:
    codes = {name: getattr(cells, name)[chosen] for name in ("user", "item", "time")}
    return replace(cells, **codes, numbers={name: values[chosen] for name, values in cells.numbers.items()})


def _refuse_certain(propensity: npt.NDArray[np.float64] | None) -> None:
    """P = 0 or 1 is legal outside only."""
    if propensity is None:
        return
    wrong = propensity[PROPENSITY.wrong(propensity) & ~np.isnan(propensity)]
    if len(wrong):
        raise wrong_values("propensity", f"{PROPENSITY.must} in eligible cells", len(wrong), show(wrong[0]))
