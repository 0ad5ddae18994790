"""Rankings from files: a fitted model, an array of scores, or a table of scored pairs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank import ranks, store, tables
from taurank.catalogue import Codes, Ids
from taurank.cells import Rule, read_cells
from taurank.errors import InputError

_RULES = (Rule("score", np.float64, lambda values: ~np.isfinite(values), "finite numbers"),)


def read_ranker(path: str | os.PathLike[str]) -> Any:
    """A model that ``save`` wrote, a ``.npy`` array users × items, or a table ``user_id, item_id, score``."""
    name = os.fspath(path)
    if Path(name).is_file():
        with open(name, "rb") as stream:
            start = stream.read(8)
        if start == store.MAGIC:
            from taurank.learners import load

            return load(path)
        if start[:6] == b"\x93NUMPY":
            return _read_array(name)
    return TableRanker(path)


def _read_array(name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(np.load(name, allow_pickle=False))
    except (ValueError, OSError) as error:
        raise InputError(f"'{name}' is not a whole array of numbers.") from error


class TableRanker:
    """Scores of listed pairs; a pair that is not listed ranks below all that are, tied."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        source = tables.from_files(path)
        if "time" in source.columns:
            raise InputError(f"{source.name} has a column 'time', but a ranking has one score per user and item.")
        pairs = read_cells(source, (None, None, None), _RULES)
        self.users: Ids = pairs.catalogue.users
        self.items: Ids = pairs.catalogue.items
        columns = (pairs.item, pairs.numbers["score"])
        self._start, (self._item, self._score) = ranks.group(pairs.user, len(self.users), *columns)
        self._floor = np.nextafter(self._score.min(), -np.inf)

    def score_block(self, user_codes: Codes) -> npt.NDArray[np.float64]:
        scores = np.full((len(user_codes), len(self.items)), self._floor)
        for row, user in enumerate(user_codes):
            here = slice(self._start[user], self._start[user + 1])
            scores[row, self._item[here]] = self._score[here]
        return scores
