"""``scorer``: recommendations as a function over Arrow batches, for any engine that maps one over partitions.

No engine is imported here. Spark's ``mapInArrow`` and Ray Data's ``map_batches`` call what ``scorer`` returns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from taurank._checks import check_integer
from taurank._choices import UnknownUsers
from taurank.data.tables import to_arrow
from taurank.errors import InputError
from taurank.learners.base import Learner
from taurank.learners.recommend import Request
from taurank.learners.registry import load


class Scorer:
    """A function from batches with ``user_id`` to batches with ``user_id, item_id, score, rank``; it can be pickled.

    ``model`` is a fitted learner, or the path of a saved one: a path is opened once by each process that scores,
    which costs nothing to send. ``unknown_users`` is that of ``recommend``.
    """

    def __init__(
        self, model: Learner | str | os.PathLike[str], k: int = 10, unknown_users: UnknownUsers = "raise"
    ) -> None:
        self.model = model if isinstance(model, Learner) else Path(model).resolve()
        self.k, self.unknown_users = check_integer("k", k), unknown_users
        self._request: Request | None = None

    @property
    def schema(self) -> pa.Schema:
        """Of the batches it returns."""
        return self.request.schema()

    @property
    def request(self) -> Request:
        if self._request is None:
            learner: Any = self.model if isinstance(self.model, Learner) else load(self.model)
            self._request = Request(learner, self.k, unknown_users=self.unknown_users, threads=1)
        return self._request

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if "user_id" not in batch.schema.names:
                raise InputError(
                    f"a batch to score needs the column 'user_id'; found: {', '.join(batch.schema.names)}."
                )
            yield from self.request.batches(batch.column("user_id"))

    def table(self, frame: Any) -> pa.Table:
        """One table in, one table out: for engines that pass a whole batch at a time."""
        return pa.Table.from_batches(self(to_arrow(frame).to_batches()), self.schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_request": None}


scorer = Scorer
