"""What every learner can do: fit, score, recommend, save.

A learner is a small declaration: its hyper-parameters are the fields of a dataclass, ``fit`` leaves what was
learned in attributes that end with an underscore, and all else is here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from taurank.data import archive
from taurank.data.ids import Codes, Ids, ids_from_bytes, ids_to_bytes
from taurank.errors import InputError
from taurank.learners.recommend import Exclusion, Recommender

if TYPE_CHECKING:
    import pandas as pd

    from taurank.data.log import Log

Unknown = Literal["raise", "warn", "popular"]
Floats = npt.NDArray[np.float32]
RandomState = int | np.random.Generator | None


@dataclass(kw_only=True, eq=False)
class Learner(ABC):
    """The common part of all learners.

    ``random_state`` is the seed: an integer (same seed, same bits), a Generator, or None for a new one.
    """

    random_state: RandomState = None

    stored: ClassVar[tuple[str, ...]] = ()  # the fitted arrays, without their underscore
    space: ClassVar[Mapping[str, Sequence[float]]] = {}  # hyper-parameters to tune, and the values to try

    @abstractmethod
    def fit(self, log: Log) -> Self:
        """Learn from a log."""

    @abstractmethod
    def score_block(self, user_codes: Codes) -> Floats:
        """A fresh array (len(user_codes), n_items) with the scores of all items, in catalogue order."""

    @property
    def users(self) -> Ids:
        """The users of the log it was fitted on, in order."""
        return self._fitted("users_")  # type: ignore[no-any-return]

    @property
    def items(self) -> Ids:
        """The items of the log it was fitted on, in order."""
        return self._fitted("items_")  # type: ignore[no-any-return]

    def score(self, users: Any, items: Any) -> Floats:
        """The score of each pair (users[n], items[n]); one user or one item goes with all of the other."""
        pairs = (self.users.encode_known(users), self.items.encode_known(items))
        if len({len(codes) for codes in pairs} - {1}) > 1:
            raise InputError(f"{len(pairs[0]):,} users and {len(pairs[1]):,} items do not make pairs.")
        rows, columns = np.broadcast_arrays(*pairs)
        each, at = np.unique(rows, return_inverse=True)
        by_user = np.argsort(at, kind="stable")
        edges = np.searchsorted(at[by_user], np.arange(0, len(each) + 256, 256))
        result = np.empty(len(rows), np.float32)
        for number, first in enumerate(range(0, len(each), 256)):
            here = by_user[edges[number] : edges[number + 1]]
            result[here] = self.score_block(each[first : first + 256])[at[here] - first, columns[here]]
        return result

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        candidates: Any = None,
        exclude: Any = None,
        on_unknown: Unknown = "raise",
        threads: int | None = None,
    ) -> pd.DataFrame:
        """The ``k`` best items of each user as a frame ``user_id, item_id, score, rank`` (rank from 1).

        ``users`` are ids (None: all). ``candidates`` are the only items to choose from. ``exclude`` is a log
        (what a user bought there), or a frame with ``user_id`` and ``item_id``, or with ``item_id`` alone
        (out of stock for everybody); what is excluded is never returned, so a user may get fewer than ``k``
        rows. A user that was not in the log is an error ("raise"), is left out with a warning ("warn"), or
        gets the most popular items ("popular").
        """
        return self._recommender(k, candidates, exclude, on_unknown, threads).frame(users)

    def write_recommendations(
        self,
        path: str | os.PathLike[str],
        users: Any = None,
        k: int = 10,
        candidates: Any = None,
        exclude: Any = None,
        on_unknown: Unknown = "raise",
        threads: int | None = None,
    ) -> int:
        """``recommend`` straight into a Parquet or CSV file, in bounded memory; gives the number of rows."""
        return self._recommender(k, candidates, exclude, on_unknown, threads).write(path, users)

    def _recommender(self, k: int, candidates: Any, exclude: Any, unknown: Unknown, threads: Any) -> Recommender:
        exclusion = Exclusion.of(exclude, self.users, self.items)
        return Recommender(self, k, candidates, exclusion, unknown, threads)

    def hyper_parameters(self) -> dict[str, Any]:
        """The constructor's arguments."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Store the fitted learner in exactly one file at ``path``; ``taurank.load`` brings it back."""
        from taurank import __version__

        self._fitted("users_")
        arrays = {name: getattr(self, f"{name}_") for name in ("popularity", *self.stored)}
        arrays["ids"] = np.frombuffer(ids_to_bytes(self.users, self.items), np.uint8)
        hyper = self.hyper_parameters()
        if isinstance(self.random_state, np.random.Generator):
            hyper["random_state"] = None
        facts = {"learner": type(self).__name__.lower(), "taurank": __version__, "hyper_parameters": hyper}
        archive.write(path, "model", facts, arrays)

    def _fitted(self, name: str) -> Any:
        try:
            return self.__dict__[name]
        except KeyError:
            raise InputError(f"this {type(self).__name__} is not fitted yet; call fit(log) first.") from None

    def _remember(self, log: Log) -> None:
        """What every fitted learner keeps: the catalogue, and how often each item was bought."""
        self.users_, self.items_ = log.users, log.items
        self.popularity_ = np.bincount(log.item[log.outcome == 1], minlength=log.n_items)


def load(path: str | os.PathLike[str]) -> Learner:
    """A fitted learner from the file that ``save`` wrote."""
    from taurank.learners import LEARNERS

    facts, arrays = archive.read(path, "model")
    try:
        learner = LEARNERS[facts["learner"]](**facts["hyper_parameters"])
    except (KeyError, TypeError) as error:
        raise InputError(
            f"'{os.fspath(path)}' was written by taurank {facts.get('taurank')} and holds a learner that this "
            "version does not know; update taurank."
        ) from error
    learner.users_, learner.items_ = ids_from_bytes(arrays.pop("ids").tobytes())
    for name, array in arrays.items():
        setattr(learner, f"{name}_", array)
    return learner
