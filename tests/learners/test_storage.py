"""Files that are whole but whose parts do not fit together: models and checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taurank import Gains, Log, World
from taurank.data import storage
from taurank.data.cell_table import fingerprint
from taurank.data.ids import Ids, ids_to_arrays
from taurank.errors import InputError
from taurank.learners import BPR, CUBN, DLCE, LEARNERS, CausE, CountingBayes, Learner, Popular, Random, load

Facts = dict[str, Any]
Arrays = dict[str, Any]
Change = Callable[[Facts, Arrays], object]


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(20, 8, random_state=0).sample(5, random_state=0).log


@pytest.fixture(scope="module")
def truth() -> Gains:
    return World.synthetic(20, 8, random_state=0).sample(5, random_state=1).truth


def small(kind: type[Learner]) -> Learner:
    options = {"factors": 4, "epochs": 2} if "factors" in kind().get_params() else {}
    return kind(random_state=0, **options)


def rewrite(path: Path, kind: str, change: Change) -> None:
    facts, arrays = storage.read(path, kind)
    change(facts, arrays)
    storage.write(path, kind, facts, arrays)


def with_ids(*lists: Ids) -> Change:
    def change(facts: Facts, arrays: Arrays) -> None:
        facts["ids"], own = ids_to_arrays(*lists)
        arrays.update(own)

    return change


def numbers(column: str, count: int) -> Ids:
    return Ids(np.arange(count), column)


def put(name: str, index: Any, value: Any) -> Change:
    def change(facts: Facts, arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


MODELS: list[tuple[type[Learner], str, Change]] = [
    (BPR, r"'popularity' has shape \(8,\)", with_ids(numbers("user_id", 20), numbers("item_id", 200_000))),
    (BPR, "'item_factors' has shape", lambda f, a: a.update(item_factors=a["item_factors"][:1])),
    (BPR, "'user_factors' has shape", lambda f, a: f["hyper_parameters"].update(factors=5)),
    (
        BPR,
        "'user_factors' has type float64",
        lambda f, a: a.update(user_factors=a["user_factors"].astype(np.float64)),
    ),
    (BPR, "'item_factors' has values that are not finite", put("item_factors", (2, 1), np.nan)),
    (BPR, "'popularity' has values out of range", put("popularity", 3, -1)),
    (BPR, "'more' is unknown", lambda f, a: a.update(more=np.zeros(3))),
    (BPR, "'item_factors' is missing", lambda f, a: a.pop("item_factors")),
    (BPR, "lists of ids are missing", lambda f, a: f.pop("ids")),
    (BPR, "lists of ids are corrupt", lambda f, a: a.pop("user_id.0")),
    (BPR, "lists of ids are item_id, user_id", with_ids(numbers("item_id", 8), numbers("user_id", 20))),
    (BPR, "which learner", lambda f, a: f.pop("learner")),
    (BPR, "update taurank", lambda f, a: f.update(learner="tomorrow")),
    (BPR, "hyper_parameters", lambda f, a: f.pop("hyper_parameters")),
    (BPR, "consistent", lambda f, a: f.update(hyper_parameters={"no_such": 1})),
    (BPR, "factors must be", lambda f, a: f["hyper_parameters"].update(factors="many")),
    (CausE, "'control_item_factors' is missing", lambda f, a: a.pop("control_item_factors")),
    (CountingBayes, "'pair_item' has values out of range, from 0 to 8", put("pair_item", 0, 8)),
    (CountingBayes, "'pair_start' does not divide", put("pair_start", -1, 10**6)),
    (CUBN, "'own' has values out of range, from", put("own", 0, 10**6)),
    (Random, "'key' has shape", lambda f, a: a.update(key=np.zeros(0, np.uint64))),
]


@pytest.mark.parametrize(("kind", "reason", "change"), MODELS)
def test_models_whose_parts_do_not_fit_are_refused(
    kind: type[Learner], reason: str, change: Change, log: Log, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    small(kind).fit(log).save(path)
    rewrite(path, "model", lambda facts, arrays: None)
    load(path)  # a copy without a change is fine
    rewrite(path, "model", change)
    with pytest.raises(InputError, match=reason) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_declares_what_it_stores(name: str, log: Log) -> None:
    """Taking any array away, or another element of any array, is noticed or harmless, never an odd exception."""
    learner = small(LEARNERS[name]).fit(log)
    arrays = {"popularity", *learner._state()[0]}
    required = {key for key, array in learner.stored.items() if not array.optional}
    assert {"popularity", *required} <= arrays <= {"popularity", *learner.stored}


def test_the_model_names_the_log_it_was_fitted_to(log: Log, tmp_path: Path) -> None:
    Popular().fit(log).save(tmp_path / "model")
    assert load(tmp_path / "model").log_fingerprint_ == fingerprint(log)
    assert fingerprint(log.with_propensity(np.full(len(log), 0.5))) != fingerprint(log)


def test_a_hyper_parameter_that_json_cannot_hold(log: Log, tmp_path: Path) -> None:
    learner = Popular().fit(log)
    learner.random_state = object()  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"'random_state' of Popular cannot be stored in a file"):
        learner.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def interrupted(log: Log, truth: Gains | None, path: Path, epochs: int = 4) -> None:
    """Leave the checkpoint of a fit that was stopped after half of its epochs."""

    def stop(_: Learner, record: Any) -> None:
        if record.epoch == epochs // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resumed(log, truth, path, epochs, stop)


def resumed(log: Log, truth: Gains | None, path: Path | None, epochs: int = 4, callback: Any = None) -> DLCE:
    learner = DLCE(random_state=0, factors=4, epochs=epochs)
    return learner.fit(
        log, truth, checkpoint=path, checkpoint_minutes=0, validate_every=1, patience=None, callback=callback
    )


def test_a_damaged_checkpoint_is_refused(log: Log, truth: Gains, tmp_path: Path) -> None:
    path = tmp_path / "state"
    interrupted(log, truth, path)
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)
    with pytest.raises(InputError, match=r"taurank file|checksum|corrupt"):
        resumed(log, truth, path)
    assert path.read_bytes() == half


@pytest.mark.parametrize("validated", [True, False])
def test_an_unchanged_checkpoint_resumes_to_the_same_bits(
    validated: bool, log: Log, truth: Gains, tmp_path: Path
) -> None:
    gains = truth if validated else None
    interrupted(log, gains, tmp_path / "state")
    rewrite(tmp_path / "state", "checkpoint", lambda facts, arrays: None)
    again, whole = resumed(log, gains, tmp_path / "state"), resumed(log, gains, None)
    assert np.array_equal(again.user_factors_, whole.user_factors_)
    assert np.array_equal(again.item_factors_, whole.item_factors_)
    assert again.history_.equals(whole.history_)


class TestFinishedCheckpoint:
    """A finished fit leaves its checkpoint until the model is in a file of its own."""

    def test_a_save_that_fails_does_not(self, log: Log, tmp_path: Path) -> None:
        learner = resumed(log, None, tmp_path / "state")
        with pytest.raises(InputError, match="does not exist"):
            learner.save(tmp_path / "nowhere" / "model")
        assert (tmp_path / "state").exists()
        calls: list[Any] = []
        again = resumed(log, None, tmp_path / "state", callback=lambda *call: calls.append(call))
        assert not calls  # nothing was trained again
        assert np.array_equal(again.user_factors_, learner.user_factors_)
        again.save(tmp_path / "model")
        assert not (tmp_path / "state").exists()

    def test_one_that_another_fit_has_replaced_is_left_alone(self, log: Log, truth: Gains, tmp_path: Path) -> None:
        learner = resumed(log, None, tmp_path / "state")
        (tmp_path / "state").unlink()
        interrupted(log, truth, tmp_path / "state")
        learner.save(tmp_path / "model")
        assert (tmp_path / "state").exists()

    def test_copies_do_not_remove_it(self, log: Log, tmp_path: Path) -> None:
        learner = resumed(log, None, tmp_path / "state")
        copy.deepcopy(learner).save(tmp_path / "copy")
        assert (tmp_path / "state").exists()
