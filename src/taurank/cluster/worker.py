"""What a worker process can do; ``Pool`` makes it a Ray actor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from taurank.cluster import assessing, counting, evaluating, pieces, recommending, routing
from taurank.cluster.assessing import AssessTask
from taurank.cluster.counting import CountTask, ScoreTask
from taurank.cluster.evaluating import MeasureTask
from taurank.cluster.pieces import Piece, Summary
from taurank.cluster.recommending import RecommendTask
from taurank.cluster.residence import Job, Residence
from taurank.cluster.routing import Columns, Place


class Worker:
    """One process with one thread. It keeps the users of one fit; everything else is passed to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.residence: Residence | None = None

    def pid(self) -> int:
        return os.getpid()

    def memory(self) -> dict[str, int]:
        """Bytes of memory of its own: now and at most, without what it shares through the object store."""
        return routing.own_memory()

    # reading

    def summarize(self, piece: Piece) -> Summary:
        return pieces.summarize(piece)

    def count_rows(self, piece: Piece, catalog: Any) -> Any:
        return pieces.count_rows(piece, catalog)

    def merge(self, *summaries: Summary) -> Summary:
        return pieces.merge(*summaries)

    # a fit

    def stage(self, piece: Piece, catalog: Any, share: float, learner: Any) -> tuple[int, Columns]:
        return routing.stage(pieces.read_part(piece, catalog, share), learner)

    def place(self, job: Job) -> tuple[Any, ...]:
        return routing.place_users(job)

    def split(self, columns: Columns, owner: Any, local: Any, owners: list[int]) -> Any:
        parts = routing.split(columns, owner, local, owners)
        return parts[0] if len(owners) == 1 else tuple(parts)

    def move_in(self, job: Job, place: Place) -> None:
        """Become the home of some users; what was here before is dropped."""
        self.residence = None
        self.residence = Residence(job, self.number, place)

    def absorb(self, number: int, columns: Columns) -> None:
        self._home.absorb(number, columns)

    def settle(self) -> int:
        return self._home.settle()

    def start(self) -> None:
        self._home.start()

    def restore(self, folder: Path) -> None:
        self._home.restore(folder)

    def plan(self, epoch: int) -> None:
        self._home.plan(epoch)

    def begin(self, *blocks: Any) -> None:
        self._home.begin(*blocks)

    def visit(self, block: int, high: int, low: int, rate: float, rows: Any = None) -> Any:
        return self._home.visit(block, high, low, rate, rows)

    def end(self) -> Any:
        return self._home.end()

    def slices(self, edges: list[int]) -> Any:
        return self._home.slices(edges)

    def write_users(self, folder: Path, number: int, low: int, high: int, *slices: Any) -> Any:
        return routing.write_users(folder, number, low, high, *slices)

    def write_items(self, folder: Path, *blocks: Any) -> Any:
        return self._home.write_items(folder, *blocks)

    # other learners, evaluation, recommendations

    def rows(self, piece: Piece, catalog: Any, share: float, group_of: Any, groups: list[int]) -> Any:
        parts = evaluating.rows_by_group(pieces.read_part(piece, catalog, share), group_of, groups)
        return parts[0] if len(groups) == 1 else tuple(parts)

    def needed(self, piece: Piece, catalog: Any, share: float, estimate: Any, whole_log: bool) -> Any:
        return evaluating.needed_users(pieces.read_part(piece, catalog, share), estimate, whole_log)

    def measure(self, task: MeasureTask, catalog: Any, ranker: Any, *rows: Any) -> Any:
        return evaluating.measure_group(task, catalog, ranker, *rows)

    def tally(self, task: AssessTask, catalog: Any, rankers: Any, *rows: Any) -> Any:
        return assessing.tally_group(task, catalog, rankers, *rows)

    def event_sums(self, task: AssessTask, catalog: Any, rankers: Any, *rows: Any) -> Any:
        return assessing.pair_sums(task, catalog, rankers, *rows)

    def count_pairs(self, task: CountTask, catalog: Any, *rows: Any) -> Any:
        return counting.count(task, catalog, *rows)

    def smooth_pairs(self, task: ScoreTask) -> Any:
        return counting.score(task)

    def recommend(self, task: RecommendTask, request: Any) -> int:
        return recommending.write_part(task, request)

    @property
    def _home(self) -> Residence:
        if self.residence is None:
            raise RuntimeError("this worker has no users yet")
        return self.residence
