"""BestChannel: for each user and item the channel of recommendation with the largest effect, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from taurank._checks import check_instance, check_integer, check_number
from taurank._threads import one_blas_thread
from taurank.data import storage
from taurank.data.channels import Channels
from taurank.data.ids import Codes
from taurank.errors import InputError
from taurank.evaluation import topk
from taurank.learners.base import Learner
from taurank.learners.recommend import MAX_EFFECT
from taurank.learners.registry import from_contents

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 256  # users
KIND = "channels"  # of file


@dataclass(frozen=True)
class BestChannel:
    """One learner per channel of recommendation.

    Its scores are compared between channels and with 0, so they must be effects (``scores_are_effects``), as those
    of ``EmpiricalBayes``, ``CountingBayes`` and ``CUBN``; scores of factor learners have no unit.
    """

    learners: Mapping[str, Learner]

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

    def scores(self, user_codes: Codes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]:
        """The largest effect of each item for these users, and the position of its channel (the first of equals)."""
        each = np.stack([learner.score_block(user_codes) for learner in self.learners.values()])
        return each.max(axis=0), each.argmax(axis=0)

    def recommend(self, users: Any = None, k: int = 10, *, min_effect: float = 0.0) -> pd.DataFrame:
        """The ``k`` best pairs of item and channel of each user: ``user_id, item_id, channel, score, rank``.

        An item is listed at most once, by its best channel, and only if its effect is larger than ``min_effect``: a
        user whom nothing helps gets no row.
        """
        import pandas as pd

        check_integer("k", k)
        check_number("min_effect", min_effect, -MAX_EFFECT, MAX_EFFECT)
        first = self._first()
        asked = np.arange(len(first.users), dtype=np.int32) if users is None else first.users.encode_known(users)
        channels, parts = np.array(list(self.learners), dtype=object), []
        with one_blas_thread():
            for begin in range(0, len(asked), BLOCK):
                codes = asked[begin : begin + BLOCK]
                scores, which = self.scores(codes)
                top = topk.best(np.where(scores > min_effect, scores, -np.inf), min(k, len(first.items)))
                row, rank = np.nonzero(np.arange(top.columns.shape[1]) < top.length[:, None])
                item = top.columns[row, rank]
                columns = {
                    "user_id": first.users.decode(codes[row]).to_pandas(),
                    "item_id": first.items.decode(item).to_pandas(),
                    "channel": channels[which[row, item]],
                    "score": top.values[row, rank],
                    "rank": (rank + 1).astype(np.int32),
                }
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

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
            learners[channel] = from_contents(os.fspath(path), own, parts, trust)
        return cls(learners)

    def _first(self) -> Learner:
        """Any of the learners, after a check that all have the same catalog."""
        first, *others = self.learners.values()
        if any(other.users != first.users or other.items != first.items for other in others):
            raise InputError("the learners of the channels have different users or items; fit them to one Channels.")
        return first
