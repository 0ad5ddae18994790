"""``fit`` on a cluster: which learners can, and the training loop with its checkpoints and losses."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from taurank._validation import generator
from taurank.cluster import counting
from taurank.cluster.distributed_fit import DistributedFit
from taurank.cluster.holdout import hold_out
from taurank.cluster.pool import Lost
from taurank.cluster.worker_fit import read_snapshot
from taurank.data.fingerprint import fingerprint
from taurank.data.shards import link_shard
from taurank.errors import InputError, first_line
from taurank.learners import CountingBayes, FactorLearner, GainsPass, Popular, Random, Record
from taurank.learners.checkpoints import State
from taurank.learners.fitting import Epoch, FitOptions, Training, history_frame
from taurank.learners.holdout import MIN_EPOCHS, affordable_users, check_epochs, pilot_epochs, refit_epochs
from taurank.sgd.scheduler import Stats

STATE = "state.json"
FITS = "BPR, DLCE, DLTO, BLCE, CountingBayes, Popular or Random"


def fit(learner: Any, log: Any, options: FitOptions) -> tuple[list[Record], FolderLeftover | None]:
    """Fit a learner to a ``ClusterLog``: its records, and its checkpoint.

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
    if isinstance(learner, CountingBayes) and type(learner) is CountingBayes:
        counting.fit(learner, log)
    elif isinstance(learner, (Popular, Random)):
        learner.learn(log)
    else:
        raise InputError(_refusal(learner))
    if options.measurement is None and options.callback is None:
        return [], None
    record = Record(1, float("nan"), 0, options.measure(learner))
    if options.callback:
        options.callback(learner, record)
    return [record] if options.measurement is not None else [], None


def _train(learner: Any, log: Any, options: FitOptions) -> tuple[list[Record], FolderLeftover | None]:
    """``FactorLearner._train``, by workers."""
    pilot = _pilot(learner, log, options) if options.holds_out else []
    final, fleet = copy.copy(learner), DistributedFit(log.cluster.pool, log, learner, _seed(learner, options))
    if pilot:
        updates, best = _load(fleet), options.best_epoch(pilot)
        final.epochs = refit_epochs(pilot, best, updates, learner.epochs, learner.rate_decay)
        fleet.learner.epochs = final.epochs
    training = ClusterTraining(final, log, options, fleet, pilot=pilot)
    state = training.run(log)
    training.put_into(learner, state.result_folder)
    learner.trained_ = np.array([state.best_epoch or state.epoch], np.int64)
    learner.holdout_ = history_frame(pilot, options.formulas)
    options.warn_if_improving(type(learner).__name__, pilot or state.history, learner.epochs)
    folder = options.checkpoint
    return state.history, None if folder is None else FolderLeftover(Path(folder).resolve())


def _pilot(learner: Any, log: Any, options: FitOptions) -> list[Record]:
    """``FactorLearner._pilot``, by workers: the epochs of a fit to a part of the log, measured on the rest."""
    file = None if options.checkpoint is None else Path(options.checkpoint) / STATE
    if file is not None and file.is_file():
        return [Record(**entry) for entry in _stored(file).get("pilot", ())]
    held = hold_out(log, not learner.estimates_effects) if learner.epochs >= MIN_EPOCHS else None
    if held is None:
        return []
    pilot = copy.copy(learner)
    pilot.epochs, pilot.rate_decay, pilot.averaging = pilot_epochs(learner.epochs, learner.rate_decay), 1.0, 0.0
    fleet = DistributedFit(log.cluster.pool, held.rest, pilot, _seed(pilot, options))
    try:
        updates = _load(fleet)
    except InputError:  # without the rows that are held out, the method lacks something it needs
        return []
    checks = check_epochs(pilot.epochs)
    users = affordable_users(pilot.epochs * updates, len(checks), log.n_items)
    measured = held.gains.some_users(options.validation_users or users, seed=0)
    watched = replace(options, validation=measured, validation_users=None, checkpoint=None, callback=None)
    due = checks if options.validate_every is None else None
    title = f"{type(learner).__name__}, held-out part"
    return ClusterTraining(pilot, held.rest, watched, fleet, due, title=title).run(held.rest).history


def _seed(learner: Any, options: FitOptions) -> int:
    """That of the checkpoint, if the learner has none of its own."""
    file = None if options.checkpoint is None else Path(options.checkpoint) / STATE
    if learner.random_state is None and file is not None and file.is_file():
        return int(_stored(file)["seed"])
    return int(generator(learner.random_state).integers(2**63))


def _load(fleet: DistributedFit) -> int:
    """Bring the positives to their owners; how many there are."""
    while True:
        try:
            fleet.load()
            assert fleet.job is not None
            return fleet.job.n_positives
        except Lost:
            fleet.pool.repair()
            fleet.log.forget_shared()


def _refusal(learner: Any) -> str:
    why = "draws its samples from all cells" if isinstance(learner, FactorLearner) else "needs the whole log"
    return (
        f"{type(learner).__name__} {why} and cannot be fitted on a cluster; fit it on one machine (Log.read), or use "
        f"{FITS}."
    )


@dataclass
class ClusterState(State):
    """How far a fit has come; its factors are at the workers and in folders."""

    fleet: Any = None
    folder: Path | None = None  # a snapshot of the model of this moment
    best_folder: Path | None = None

    def keep_best(self) -> None:
        self.best_folder = self.folder

    def add_to_average(self) -> None:
        self.averaged += 1
        self.fleet.add_to_average(self.averaged)

    @property
    def result_folder(self) -> Path:
        """The snapshot of the best epoch, or of the last."""
        folder = self.best_folder or self.folder
        assert folder is not None
        return folder


class ClusterTraining(Training):
    """The loop of ``Training``; a lost worker takes it back to the last checkpoint, or to the start."""

    def __init__(
        self, learner: Any, log: Any, options: FitOptions, fleet: DistributedFit,
        checks: Container[int] | None = None, pilot: Sequence[Record] = (), title: str = "",
    ) -> None:  # fmt: skip
        super().__init__(learner, Epoch(self._epoch, 0), options, 1, checks, pilot, title)
        self.cluster, self.fleet = log.cluster, fleet

    def run(self, log: Any) -> ClusterState:
        """Train to the end, however many workers are lost on the way."""
        while True:
            try:
                state = super().run(log)
                assert isinstance(state, ClusterState)
                self.snapshot(state)
                return state
            except Lost:
                self.cluster.pool.repair()
                log.forget_shared()

    def begin(self, log: Any) -> ClusterState:
        self.fleet.load()
        self.fleet.start()
        return ClusterState(self.fleet.seed, None, pilot=self.pilot, fleet=self.fleet)  # type: ignore[arg-type]

    def stored(self, path: Any, identity: tuple[Any, ...], data: list[Any]) -> Any:
        return FolderCheckpoint(Path(path).resolve(), f"{identity!r} {fingerprint(*data)}", self)

    def measured(self, state: Any) -> Any:
        return self.put_into(self.learner, self.snapshot(state))

    def snapshot(self, state: ClusterState) -> Path:
        """The model of this moment as a folder, written once per epoch; the one before is removed."""
        if state.folder is not None and state.folder.name == f"epoch-{state.epoch}":
            return state.folder
        before, parent = state.folder, self.cluster.new_folder("fit")
        folder: Path = parent / f"epoch-{state.epoch}"
        folder.mkdir()
        state.folder = self.fleet.snapshot(folder, averaged=state.averaged > 0)
        if before is not None and before != state.best_folder:
            shutil.rmtree(before.parent, ignore_errors=True)
        return folder

    @staticmethod
    def put_into(learner: Any, folder: Path) -> Any:
        """The learner with the factors of a snapshot: users memory-mapped, items in memory."""
        arrays = read_snapshot(folder)
        learner.user_factors_, learner.item_factors_ = arrays["user_factors"], np.asarray(arrays["item_factors"])
        _ = arrays["user_factors"].parts  # mapped now: the files may be replaced by those of a later epoch
        return learner

    def _epoch(self, factors: Any, seed: int, number: int, threads: int) -> Stats:
        return self.fleet.run_epoch(number, self.fleet.learner.rate(number))


@dataclass
class FolderCheckpoint:
    """A folder that holds the state of one fit: ``state.json`` names the snapshots that belong together."""

    folder: Path
    identity: str
    training: ClusterTraining = field(repr=False)

    def __post_init__(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"the checkpoint '{self.folder}' is a file; a fit on a cluster needs a folder.")
        if self.folder.is_dir() and not all(_is_ours(entry.name) for entry in self.folder.iterdir()):
            raise InputError(f"the checkpoint '{self.folder}' has other files in it; name a new folder.")
        if not self.folder.parent.is_dir():
            raise InputError(f"the folder '{self.folder.parent}' does not exist; create it first.")
        self.folder.mkdir(exist_ok=True)

    @property
    def path(self) -> Path:
        """The file that names the snapshots; it is there as soon as there is something to resume from."""
        return self.folder / STATE

    def write(self, state: ClusterState) -> None:
        """New snapshots first, then the file that names them, then the old ones go."""
        name = f"at-{state.epoch:06d}"
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tables").mkdir(parents=True)
        self.training.fleet.snapshot(folder / "tables")
        if state.averaged:
            (folder / "average").mkdir()
            self.training.fleet.snapshot(folder / "average", averaged=True)
        if state.best_folder is not None:
            (folder / "best").mkdir()
            for file in state.best_folder.iterdir():
                link_shard(file, folder / "best" / file.name)
        content = {
            "identity": self.identity, "folder": name, "seed": state.seed, "epoch": state.epoch,
            "best": state.best if math.isfinite(state.best) else None, "best_epoch": state.best_epoch,
            "worse": state.worse, "averaged": state.averaged, "history": [asdict(r) for r in state.history],
            "pilot": [asdict(r) for r in state.pilot],
        }  # fmt: skip
        temporary = self.folder / f".{STATE}.tmp"
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.path)
        for other in self.folder.glob("at-*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)

    def read(self, start: ClusterState, epochs: int, names: Any, seeded: bool) -> ClusterState:
        """Go on from the folder; the workers take their factors from it."""
        content = _stored(self.path)
        if content["identity"] != self.identity:
            raise InputError(
                f"the checkpoint '{self.folder}' belongs to another fit (other data, hyper-parameters or "
                "validation); remove it or name another folder."
            )
        try:
            folder = self.folder / content["folder"]
            best = -math.inf if content["best"] is None else float(content["best"])
            history = [Record(**entry) for entry in content["history"]]
            state = ClusterState(
                content["seed"], start.tables, content["epoch"], best, content["best_epoch"], None, content["worse"],
                history, None, content["averaged"], start.pilot, fleet=start.fleet,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the checkpoint '{self.folder}' is inconsistent ({first_line(error)}); remove it."
            ) from error
        start.fleet.restore(folder / "tables", folder / "average" if state.averaged else None)
        if state.best_epoch:
            state.best_folder = self.training.cluster.new_folder("fit") / "best"
            state.best_folder.mkdir()
            for file in (folder / "best").iterdir():
                link_shard(file, state.best_folder / file.name)
        return state


def _is_ours(name: str) -> bool:
    return name in (STATE, f".{STATE}.tmp") or name.startswith("at-")


def _stored(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and {"identity", "seed"} <= content.keys():
            return content
    except (OSError, ValueError):
        pass
    raise InputError(f"the checkpoint '{path.parent}' is corrupt; remove it.")


@dataclass(frozen=True)
class FolderLeftover:
    """The checkpoint of a finished fit, removed when the model is saved."""

    path: Path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
