"""News for a fitted learner: new rows in a catalog that has grown, and the factors to start from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from taurank.data.fingerprint import fingerprint
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.sgd.scheduler import factor_table

Float32s = npt.NDArray[np.float32]

SHARE = 10  # an update makes a tenth of the epochs of a fit


class Updatable(Protocol):
    """What a fitted learner stores of its catalog."""

    users_: Ids
    items_: Ids
    popularity_: npt.NDArray[Any]
    log_fingerprint_: str | None

    @property
    def users(self) -> Ids: ...

    @property
    def items(self) -> Ids: ...


@dataclass(frozen=True)
class News:
    """New rows and, if given, past ones, both in the grown catalog."""

    log: Log
    past: Log | None
    fingerprint: str

    @classmethod
    def of(cls, learner: Updatable, log: Log, past: Log | None) -> News:
        mark = fingerprint(log)
        if mark == learner.log_fingerprint_:
            raise InputError(
                "the model has already learned from these rows; update it with the rows since then, "
                "and give the older ones as past=."
            )
        others = [log] if past is None else [past, log]
        users = learner.users.extended(*(other.users for other in others))
        items = learner.items.extended(*(other.items for other in others))
        return cls(log.reindex(users, items), None if past is None else past.reindex(users, items), mark)

    def all_rows(self) -> Log:
        """The past and the new rows."""
        return self.log if self.past is None else self.past.concat(self.log)

    def extend(self, learner: Updatable) -> None:
        """Give the learner the grown catalog, and add up how much of each item was bought."""
        bought = bought_by_item(self.log)
        before = np.zeros_like(learner.popularity_, shape=len(bought))
        before[: len(learner.popularity_)] = learner.popularity_
        bought = bought + before
        learner.users_, learner.items_, learner.popularity_ = self.log.users, self.log.items, bought
        learner.log_fingerprint_ = self.fingerprint
        for name in ("_lookup", "_leftover"):
            learner.__dict__.pop(name, None)

    def seed(self, random_state: Any, *factors: Float32s) -> int:
        """The seed of an update: from the model, the logs and the seed of the fit."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(f"{random_state if isinstance(random_state, int) else None} {self.fingerprint}".encode())
        if self.past is not None:
            digest.update(fingerprint(self.past).encode())
        for table in factors:
            digest.update(np.ascontiguousarray(table).view(np.uint8).data)
        return int.from_bytes(digest.digest(), "little") >> 1


def extended(factors: Float32s, rows: int) -> Float32s:
    """A table for training with these factors first; a new row begins as their mean."""
    factors = np.asarray(factors)  # those of a model folder are in files
    table = factor_table(rows, factors.shape[1])
    table[: len(factors), : factors.shape[1]] = factors
    if len(factors):
        table[len(factors) :, : factors.shape[1]] = factors.mean(axis=0, dtype=np.float64)
    return table


def bought_by_item(log: Log) -> npt.NDArray[Any]:
    """How often each item was bought; how much of it, where the log has values."""
    rows = np.flatnonzero(log.outcome)
    weight = None if log.value is None else log.value[rows]
    return np.bincount(log.item[rows], weight, minlength=log.n_items)
