"""What comes after a fit: new rows in a catalog that has grown, and users that appeared since."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._types import Codes, Floats32
from taurank.data.cell_table import fingerprint
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.recommend import Fitted


@dataclass(frozen=True)
class NewRows:
    """New rows and, if given, past ones, both in the grown catalog."""

    log: Log
    past: Log | None
    fingerprint: str

    @classmethod
    def of(cls, learner: Any, log: Log, past: Log | None) -> NewRows:
        mark = fingerprint(log)
        if mark == learner.log_fingerprint_:
            raise InputError(
                "the model has already learned from these rows; update it with the rows since then, "
                "and give the older ones as past=."
            )
        before = [] if past is None else [past]
        users = learner.users.extended(*(other.users for other in (*before, log)))
        known = learner.items.extended(*(other.items for other in before))
        items = known.extended(log.items)
        earlier = None if past is None else past.reindex(users, items)
        if earlier is not None and len(known) < len(items):  # what came later could not be bought before
            earlier = replace(earlier, eligibility=earlier.eligibility.with_items(len(known)))
        return cls(log.reindex(users, items), earlier, mark)

    def all_rows(self) -> Log:
        """The past and the new rows."""
        return self.log if self.past is None else self.past.concat(self.log)

    def popularity(self, before: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """How much of each item was bought, with what was bought before."""
        bought = bought_by_item(self.log)
        return np.asarray(bought + np.pad(before, (0, len(bought) - len(before))))

    def seed(self, random_state: Any, *factors: Floats32) -> int:
        """The seed of an update: from the model, the logs and the seed of the fit."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(f"{random_state if isinstance(random_state, int) else None} {self.fingerprint}".encode())
        if self.past is not None:
            digest.update(fingerprint(self.past).encode())
        for table in factors:
            digest.update(np.ascontiguousarray(table).view(np.uint8).data)
        return int.from_bytes(digest.digest(), "little") >> 1


def bought_by_item(log: Log) -> npt.NDArray[Any]:
    """How often each item was bought; how much of it, where the log has values."""
    rows = np.flatnonzero(log.outcome)
    weight = None if log.value is None else log.value[rows]
    return np.bincount(log.item[rows], weight, minlength=log.n_items)


def has_new_users(users: Ids, log: Log) -> bool:
    """Whether the log names a user that is not among these."""
    return bool((users.encode(log.users.values) < 0).any())


def rows_of_new_users(users: Ids, items: Ids, log: Log) -> Log:
    """The rows of users outside the model about items in it, sorted: their order must not change a bit."""
    is_new = users.encode(log.users.values) < 0
    if not is_new.any():
        raise InputError("the model knows all users of this log; recommend for them without it, or update the model.")
    new = Ids(log.users.values.filter(pa.array(is_new)), log.users.column)
    rows = log.reindex(new, items)
    return rows.take(np.lexsort((rows.time, rows.item, rows.user)))


class WithNewUsers:
    """A fitted learner, and a copy of it for further users: together they serve all of them."""

    def __init__(self, known: Fitted, new: Fitted) -> None:
        self.known, self.new, self.popularity_ = known, new, known.popularity_
        self.scores_are_effects = known.scores_are_effects

    @cached_property
    def users(self) -> Ids:
        return self.known.users.extended(self.new.users)

    @property
    def items(self) -> Ids:
        return self.known.items

    def score_block(self, user_codes: Codes) -> Floats32:
        beyond = len(self.known.users)
        is_new = user_codes >= beyond
        scores = np.empty((len(user_codes), len(self.items)), np.float32)
        for learner, mine, first in ((self.known, ~is_new, 0), (self.new, is_new, beyond)):
            if mine.any():
                scores[mine] = learner.score_block(user_codes[mine] - np.int32(first))
        return scores
