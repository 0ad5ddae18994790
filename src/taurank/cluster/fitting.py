"""``fit`` on a cluster: which learners can, what is held out, and the training with its checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from taurank._checks import generator
from taurank.cluster import counting
from taurank.cluster.distributed_fit import DistributedFit
from taurank.cluster.gains import ClusterGains, Estimate
from taurank.cluster.pieces import Part, count_rows
from taurank.cluster.pool import Lost
from taurank.cluster.rows import ClusterRows
from taurank.cluster.worker_fit import read_snapshot
from taurank.data.shards import link_file
from taurank.errors import InputError, TooLittleData
from taurank.learners import CountingBayes, FactorLearner, GainsPass, Learner, Popular, Random, Record
from taurank.learners import holdout as policy
from taurank.learners.options import FitOptions, history_frame
from taurank.learners.training import (
    Epoch,
    Schedule,
    State,
    Training,
    check_identity,
    identity_of,
    progress_of,
    state_of,
)
from taurank.sgd.scheduler import Stats

STATE = "state.json"
FITS = "BPR, DLCE, DLTO, BLCE, CountingBayes, Popular or Random"


def fit(learner: Learner, log: ClusterRows, options: FitOptions) -> list[Record]:
    """Fit a learner to a ``ClusterLog``; returns the records of its epochs.

    The factors are in files afterwards, opened memory-mapped.
    """
    if not log.cluster.open:
        raise InputError("the connection this log was read with is closed; read it again inside `with connect(…)`.")
    if options.validation_users is not None and not options.holds_out:
        raise InputError("validation_users samples gains in memory; on a cluster, leave it out.")
    if options.features is not None:
        raise InputError("features are not used on a cluster; leave them out, or fit on one machine (Log.read).")
    if isinstance(learner, GainsPass):
        return _train(learner, log, options)
    if type(learner) is CountingBayes:
        counting.fit(learner, log)
    elif isinstance(learner, (Popular, Random)):
        learner.learn(log)  # type: ignore[arg-type]  # they count purchases alone
    else:
        why = "draws its samples from all cells" if isinstance(learner, FactorLearner) else "needs the whole log"
        raise InputError(
            f"{type(learner).__name__} {why} and cannot be fitted on a cluster; fit it on one machine (Log.read), or "
            f"use {FITS}."
        )
    return learner._checked_once(options)


def _train(learner: GainsPass, log: ClusterRows, options: FitOptions) -> list[Record]:
    """``FactorLearner._train``, by workers."""
    full, checkpoint, stored = learner._schedule, None, None
    if options.checkpoint is not None:
        identity = identity_of(learner, options, full, learner.random_state, log)
        checkpoint = FolderCheckpoint(Path(options.checkpoint).resolve(), identity)
        stored = checkpoint.stored()
    held_out = [Record(**one) for one in stored["held_out"]] if stored else _hold_out_run(learner, log, options)
    seed = stored["seed"] if stored else int(generator(learner.random_state).integers(2**63))
    schedule, fleet = full, DistributedFit(log, learner, seed)
    if held_out:
        schedule = policy.refit_schedule(full, held_out, options.best_epoch(held_out), fleet.load())
    state = _run(learner, fleet, schedule, options, held_out, checkpoint)
    put_into(learner, state.result_folder)
    learner.trained_ = np.array([state.best_epoch or state.epoch], np.int64)
    learner.holdout_ = history_frame(held_out, options.metrics)
    if checkpoint:
        learner._checkpoint = checkpoint  # type: ignore[assignment]  # ``save`` removes it
    options.warn_if_improving(type(learner).__name__, held_out or state.history, full.epochs)
    return state.history


def _hold_out_run(learner: GainsPass, log: ClusterRows, options: FitOptions) -> list[Record]:
    """``FactorLearner._hold_out_run``, by workers: the epochs of a fit to a part of the log, measured on the rest."""
    if not options.holds_out or learner.epochs < policy.MIN_EPOCHS:
        return []
    held = hold_out(log, not learner.estimates_effects)
    if held is None:
        return []
    rest, gains = held
    fleet = DistributedFit(rest, learner, int(generator(learner.random_state).integers(2**63)))
    try:
        updates = fleet.load()
    except TooLittleData:  # without the rows that are held out, the method lacks something it needs
        return []
    run = policy.run_schedule(learner._schedule)
    checks = policy.check_epochs(run.epochs)
    users = policy.affordable_users(run.epochs * updates, len(checks), log.n_items)
    measured = gains.some_users(options.validation_users or users, seed=0)
    watched = replace(options, validation=measured, validation_users=None, checkpoint=None, callback=None)
    title = f"{type(learner).__name__}, held-out part"
    return _run(learner, fleet, run, watched, [], None, checks, title).history


ROWS, TREATED, POSITIVES, WITHOUT_PROPENSITY = range(4)  # what ``count_rows`` counts


def hold_out(log: ClusterRows, by_outcome: bool) -> tuple[ClusterRows, ClusterGains] | None:
    """As ``taurank.learners.holdout.hold_out``: the rest of the log, and the gains of the rows that are held out."""
    counts = sum(log.cluster.pool.map(count_rows, [(piece, log.shared) for piece in log.pieces]))
    last = policy.last_times(np.flatnonzero(counts[:, :, POSITIVES].sum(0)).astype(np.int32))
    held = (counts[:, last] if len(last) else counts[1:]).sum((0, 1))
    rest = counts.sum((0, 1)) - held
    if not held[POSITIVES] or not rest[POSITIVES]:
        return None
    times = tuple(int(time) for time in last)
    kept = log.part(Part(False, times), rest, policy.without_times(log.catalog, last))
    measured = log.part(Part(True, times), held, log.catalog)
    has_both = 0 < held[TREATED] < log.catalog.n_cells
    name = policy.estimator_for(held[WITHOUT_PROPENSITY] == 0, has_both, by_outcome)
    return kept, ClusterGains(measured, Estimate(name, {"cap": policy.CAP} if name == "capped_ips" else {}))


def _run(
    learner: GainsPass, fleet: DistributedFit, schedule: Schedule, options: FitOptions, held_out: list[Record],
    checkpoint: FolderCheckpoint | None, checks: Container[int] | None = None, title: str = "",
) -> ClusterState:  # fmt: skip
    """Train to the end, however many workers are lost on the way: each takes it back to the last checkpoint."""

    def run(factors: Any, seed: int, number: int, rate: float, threads: int) -> Stats:
        return fleet.run_epoch(number, rate)

    while True:
        fleet.load()
        try:
            fleet.start()
            state = ClusterState(fleet.seed, None, held_out, fleet=fleet)  # type: ignore[arg-type]
            state = (checkpoint and checkpoint.read(state)) or state
            Training(learner, Epoch(run, 0), schedule, options, checks, title).run(state, checkpoint)
            state.snapshot()
            return state
        except Lost:
            fleet.log.repair()


@dataclass
class ClusterState(State):
    """How far training has come; its factors are at the workers and in folders."""

    fleet: DistributedFit = None  # type: ignore[assignment]  # a field behind others with defaults
    folder: Path | None = None  # a snapshot of the model of this moment
    best_folder: Path | None = None

    def put_into(self, learner: FactorLearner) -> None:
        put_into(learner, self.snapshot())

    def keep_best(self) -> None:
        self.best_folder = self.folder

    def snapshot(self) -> Path:
        """The model of this moment as a folder, written once per epoch; the one before is removed."""
        if self.folder is not None and self.folder.name == f"epoch-{self.epoch}":
            return self.folder
        before, parent = self.folder, self.fleet.log.cluster.new_folder("fit")
        folder: Path = parent / f"epoch-{self.epoch}"
        folder.mkdir()
        self.folder = self.fleet.snapshot(folder)
        if before is not None and before != self.best_folder:
            shutil.rmtree(before.parent, ignore_errors=True)
        return folder

    @property
    def result_folder(self) -> Path:
        """The snapshot of the best epoch, or of the last."""
        folder = self.best_folder or self.folder
        assert folder is not None
        return folder


def put_into(learner: FactorLearner, folder: Path) -> None:
    """Give a learner the factors of a snapshot: users memory-mapped, items in memory."""
    arrays = read_snapshot(folder)
    learner.user_factors_ = arrays["user_factors"]  # type: ignore[assignment]  # indexed like an array
    learner.item_factors_ = np.asarray(arrays["item_factors"])
    _ = arrays["user_factors"].parts  # mapped now: the files may be replaced by those of a later epoch


@dataclass
class FolderCheckpoint:
    """A folder that holds the state of one fit: ``state.json`` names the snapshots that belong together."""

    folder: Path
    identity: str

    def __post_init__(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"the checkpoint '{self.folder}' is a file; a fit on a cluster needs a folder.")
        if self.folder.is_dir() and not all(_is_ours(entry.name) for entry in self.folder.iterdir()):
            raise InputError(f"the checkpoint '{self.folder}' has other files in it; name a new folder.")
        if not self.folder.parent.is_dir():
            raise InputError(f"the folder '{self.folder.parent}' does not exist; create it first.")
        self.folder.mkdir(exist_ok=True)

    def write(self, state: ClusterState) -> None:
        """New snapshots first, then the file that names them, then the old ones go."""
        name = f"at-{state.epoch:06d}"
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tables").mkdir(parents=True)
        state.fleet.snapshot(folder / "tables")
        if state.best_folder is not None:
            _link(state.best_folder, folder / "best")
        temporary = self.folder / f".{STATE}.tmp"
        content = {"identity": self.identity, "folder": name, **progress_of(state)}
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.folder / STATE)
        for other in self.folder.glob("at-*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def stored(self) -> dict[str, Any] | None:
        """What ``state.json`` says; None before the first snapshot."""
        file = self.folder / STATE
        if not file.is_file():
            return None
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"the checkpoint '{self.folder}' is corrupt; remove it.") from error
        check_identity(self.folder, content, self.identity)
        return content

    def read(self, start: ClusterState) -> ClusterState | None:
        """Go on from the folder, if there is one; the workers take their factors from it."""
        content = self.stored()
        if content is None:
            return None
        folder = self.folder / content["folder"]
        start.fleet.restore(folder / "tables")
        state: ClusterState = state_of(content, ClusterState, tables=None, fleet=start.fleet)
        if state.best_epoch:
            state.best_folder = start.fleet.log.cluster.new_folder("fit") / "best"
            _link(folder / "best", state.best_folder)
        return state


def _link(source: Path, target: Path) -> None:
    """The files of a snapshot under another name."""
    target.mkdir()
    for file in source.iterdir():
        link_file(file, target / file.name)


def _is_ours(name: str) -> bool:
    return name in (STATE, f".{STATE}.tmp") or name.startswith("at-")
