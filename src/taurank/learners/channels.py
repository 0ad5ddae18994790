"""BestChannel: for each user and item the channel of recommendation with the largest effect, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from taurank._checks import check_instance, check_number
from taurank._types import Codes, Floats32
from taurank.data import storage
from taurank.data.channels import Channels
from taurank.data.ids import Ids
from taurank.errors import InputError
from taurank.learners.base import Learner
from taurank.learners.recommend import MAX_EFFECT, Request
from taurank.learners.registry import from_contents

if TYPE_CHECKING:
    import pandas as pd

KIND = "channels"  # of file


@dataclass(frozen=True)
class BestChannel:
    """One learner per channel of recommendation.

    Scores of the ``learners`` are compared between channels and with 0, so they must be effects
    (``scores_are_effects``), as those of ``EmpiricalBayes``, ``CountingBayes`` and ``CUBN``; scores of factor
    learners have no unit.
    """

    learners: Mapping[str, Learner]

    scores_are_effects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.learners:
            raise InputError("BestChannel needs a learner for at least one channel.")
        for channel, learner in self.learners.items():
            check_instance(f"the learner of '{channel}'", learner, Learner, "taurank, such as CountingBayes()")
            if not learner.scores_are_effects:
                raise InputError(
                    f"BestChannel compares effects, and the scores of {type(learner).__name__} for '{channel}' only "
                    "order the items; use EmpiricalBayes, CountingBayes or CUBN."
                )

    def fit(self, channels: Channels, **options: Any) -> Self:
        """Fit each learner to the log of its channel; options as in ``Learner.fit``."""
        check_instance("channels", channels, Channels, "Channels.from_frame")
        for channel, learner in self.learners.items():
            learner.fit(channels[channel], **options)
        return self

    @property
    def users(self) -> Ids:
        return self._first().users

    @property
    def items(self) -> Ids:
        return self._first().items

    @property
    def popularity_(self) -> Any:
        return self._first().popularity_

    def score_block(self, user_codes: Codes) -> Floats32:
        """The largest effect of each item for these users."""
        blocks = [learner.score_block(user_codes) for learner in self.learners.values()]
        return np.asarray(np.maximum.reduce(blocks))

    def recommend(self, users: Any = None, k: int = 10, *, min_effect: float = 0.0) -> pd.DataFrame:
        """The ``k`` best pairs of item and channel of each user: ``user_id, item_id, channel, score, rank``.

        An item is listed at most once, by its best channel (the first of equals).

        Parameters
        ----------
        users : ids (None: all)
        k : how many pairs
        min_effect : list only items whose effect is larger: a user whom nothing helps gets no row
        """
        check_number("min_effect", min_effect, -MAX_EFFECT, MAX_EFFECT)
        above = float(np.nextafter(np.float32(min_effect), np.float32(np.inf)))
        frame = Request(self, k, min_effect=above).frame(users)
        each = [learner.score(frame["user_id"], frame["item_id"]) for learner in self.learners.values()]
        frame.insert(2, "channel", np.array(list(self.learners), dtype=object)[np.argmax(each, axis=0)])
        return frame

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted learners of all channels to one file."""
        self._first()
        metadata, arrays = {}, {}
        for number, (channel, learner) in enumerate(self.learners.items()):
            metadata[channel], own = learner.contents()
            arrays.update({f"{number}/{name}": array for name, array in own.items()})
        storage.write(path, KIND, {"channels": metadata}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], trust: Iterable[str] = ()) -> Self:
        """The learners that ``save`` wrote; ``trust`` as in ``taurank.load``."""
        metadata, arrays = storage.read(path, KIND)
        learners = {}
        for number, (channel, own) in enumerate(metadata["channels"].items()):
            start = f"{number}/"
            parts = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
            learners[channel] = from_contents(f"'{os.fspath(path)}'", own, parts, trust)
        return cls(learners)

    def _first(self) -> Learner:
        """Any of the learners, after a check that all have the same catalog."""
        first, *others = self.learners.values()
        if any(other.users != first.users or other.items != first.items for other in others):
            raise InputError("the learners of the channels have different users or items; fit them to one Channels.")
        return first
