"""Cells of a catalog: checked positions, random ones, and their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank._validation import check_integer
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

BOUND = 1e-6  # estimates are clipped to [BOUND, 1 − BOUND]

RandomState = int | np.random.Generator | None
Longs = npt.NDArray[np.int64]


def positions(catalog: Catalog, *codes: npt.ArrayLike) -> list[npt.NDArray[Any]]:
    """User, item and time positions of one shape; none of them may point outside the catalog."""
    try:
        arrays = list(np.broadcast_arrays(*codes))
    except ValueError as error:
        raise InputError("user, item and time positions must have the same length.") from error
    sizes = {"user": catalog.n_users, "item": catalog.n_items, "time": catalog.n_times}
    for (name, n), array in zip(sizes.items(), arrays, strict=True):
        if not np.issubdtype(array.dtype, np.integer):
            raise InputError(f"{name} positions must be integers, got {array.dtype}.")
        wrong = (array < 0) | (array >= n)
        if wrong.any():
            raise InputError(
                f"{name} positions must be between 0 and {n - 1}; {np.count_nonzero(wrong):,} are not, "
                f"for example {array[wrong][0]}."
            )
    return arrays


def refuse_one_sided(log: Log) -> None:
    """Without a treated cell, or without an untreated one, there is nothing to estimate."""
    n_treated = int(np.count_nonzero(log.treated))
    if n_treated == 0:
        raise InputError(
            f"column 'treated' is 0 in all {len(log):,} rows; a propensity can be estimated only from a "
            "log in which something was recommended."
        )
    if n_treated == log.cells:
        raise InputError(
            f"column 'treated' is 1 in all {n_treated:,} cells; without a cell that was not recommended there "
            "is no propensity to estimate (does the catalog have all users, items and times?)."
        )


def codes_of(catalog: Catalog, number: Longs) -> tuple[Longs, Longs, Longs]:
    """User, item and time of cells given by their number."""
    rest, item = np.divmod(number, catalog.n_items)
    time, user = np.divmod(rest, catalog.n_users)
    return user, item, time


def cells_frame(catalog: Catalog, number: Longs, propensity: Callable[..., Any]) -> pd.DataFrame:
    """Cells with their ids and propensities, for the ``cells=`` of ``diagnose``."""
    import pandas as pd

    user, item, time = codes_of(catalog, number)
    columns = {"user_id": catalog.users.decode(user), "item_id": catalog.items.decode(item)}
    columns["time"] = catalog.times.decode(time)
    frame = pd.DataFrame({name: column.to_pandas() for name, column in columns.items()})
    return frame.assign(propensity=propensity(user, item, time))


def random_cells(n_cells: int, wanted: int, generator: np.random.Generator) -> Longs:
    """Distinct cell numbers, in order; all of them if as many or more are wanted."""
    check_integer("n_cells", wanted)
    if wanted > n_cells // 2:
        return np.sort(generator.permutation(np.arange(n_cells))[:wanted])
    picked = _distinct(generator.integers(0, n_cells, wanted))
    while len(picked) < wanted:
        more = generator.integers(0, n_cells, wanted - len(picked))
        picked = _distinct(np.concatenate([picked, more]))
    return picked


def _distinct(values: Longs) -> Longs:
    values.sort()
    first: npt.NDArray[np.bool_] = np.append(True, values[1:] != values[:-1])
    return values[first]
