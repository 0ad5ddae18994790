"""Users that appeared after the fit: their rows, and a model that serves old and new users."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank.data.ids import Codes, Ids
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.lookup import Lookup
from taurank.learners.recommend import Fitted


def has_new_users(users: Ids, log: Log) -> bool:
    """Whether the log names a user that is not among these."""
    return bool((users.encode(log.users.values) < 0).any())


def rows_of_new_users(users: Ids, items: Ids, log: Log) -> Log:
    """The rows of users outside the model about items in it, sorted: their order must not change a bit."""
    is_new = users.encode(log.users.values) < 0
    if not is_new.any():
        raise InputError("the model knows all users of this log; recommend for them without rows, or update it.")
    new = Ids(log.users.values.filter(pa.array(is_new)), log.users.column)
    rows = log.reindex(new, items)
    order = np.lexsort((rows.time, rows.item, rows.user))
    return rows.take(order)


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

    @cached_property
    def lookup(self) -> Lookup:
        return Lookup(self.users)

    def score_block(self, user_codes: Codes) -> npt.NDArray[np.float32]:
        beyond = len(self.known.users)
        scores = np.empty((len(user_codes), len(self.items)), np.float32)
        for learner, mine, first in (
            (self.known, user_codes < beyond, 0),
            (self.new, user_codes >= beyond, beyond),
        ):
            if mine.any():
                scores[mine] = learner.score_block(user_codes[mine] - np.int32(first))
        return scores
