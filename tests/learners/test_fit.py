"""``fit``: validation, early stopping, callbacks, history, divergence, checkpoints, odd arguments."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from taurank import Gains, Log, World
from taurank.errors import DivergedError, InputError
from taurank.evaluation.evaluate import evaluate
from taurank.learners import (
    BPR,
    DLCE,
    LEARNERS,
    ULBPR,
    ULRMF,
    CausE,
    FactorLearner,
    Learner,
    Popular,
    Record,
)
from taurank.learners.training import Epoch
from taurank.sgd.scheduler import Stats

FACTORS = [kind for kind in LEARNERS.values() if issubclass(kind, FactorLearner)]
ONE_PASS = [kind for kind in LEARNERS.values() if not issubclass(kind, FactorLearner)]


@pytest.fixture(scope="module")
def truth(world: World) -> Gains:
    return world.sample(3, random_state=5).truth


class TestContract:
    @pytest.mark.parametrize("kind", FACTORS)
    def test_history_is_a_frame_with_a_row_per_epoch(self, kind: Any, log: Log, truth: Gains) -> None:
        learner = kind(factors=4, epochs=6, random_state=0)
        learner.fit(log, truth, metric=["CDCG", "cp@10"], validate_every=2, patience=None)
        history = learner.history_
        assert list(history) == ["epoch", "loss", "updates", "CDCG", "CP@10"]
        assert history["epoch"].tolist() == [1, 2, 3, 4, 5, 6]
        assert history["CP@10"].notna().tolist() == [False, True] * 3
        assert (history["updates"] > 0).all()
        assert learner.updates_per_epoch(log) > 0

    @pytest.mark.parametrize("kind", FACTORS)
    def test_callback_without_validation(self, kind: Any, log: Log, truth: Gains) -> None:
        records, values = [], []

        def look(learner: Learner, record: Record) -> None:
            records.append(record)
            values.append(evaluate(learner, truth, "CDCG")["CDCG"].mean)

        learner = kind(factors=4, epochs=6, random_state=0).fit(log, validate_every=3, callback=look)
        assert [record.epoch for record in records] == [3, 6]
        assert [record.metrics for record in records] == [{}, {}]
        assert records[1].loss == learner.history_["loss"].iloc[5]
        assert list(learner.history_) == ["epoch", "loss", "updates"]
        checked = kind(factors=4, epochs=6, random_state=0).fit(log, truth, validate_every=3, patience=None)
        assert checked.history_["CDCG"].dropna().tolist() == values

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_one_pass_learners_take_the_same_arguments(
        self, kind: Any, log: Log, truth: Gains, tmp_path: Path
    ) -> None:
        calls: list[tuple[Learner, Record]] = []
        learner = kind(random_state=0)
        learner.fit(
            log, truth, metric=("CDCG", "CAR"), patience=3, show_progress=False, checkpoint=tmp_path / "state",
            validate_every=2, checkpoint_minutes=0, callback=lambda *call: calls.append(call),
        )  # fmt: skip
        [(given, record)] = calls
        assert given is learner
        assert list(learner.history_) == ["epoch", "loss", "updates", "CDCG", "CAR"]
        assert learner.history_["CAR"].tolist() == [record.metrics["CAR"]]
        assert record.metrics["CAR"] == evaluate(learner, truth, "CAR")["CAR"].mean
        assert learner.updates_per_epoch(log) == 0
        assert kind().fit(log).history_.empty
        assert not (tmp_path / "state").exists()

    @pytest.mark.filterwarnings("ignore::taurank.errors.UnfinishedWarning")
    def test_the_first_metric_decides(self, log: Log, truth: Gains) -> None:
        fits = {}
        for metrics in (("CAR", "CDCG"), ("CDCG", "CAR")):
            learner = DLCE(random_state=0, factors=8, epochs=12, learning_rate=0.1, rate_decay=1.0)
            fits[metrics[0]] = learner.fit(log, truth, metric=metrics, patience=None, validate_every=1)
        car, cdcg = fits["CAR"].history_, fits["CDCG"].history_
        pd.testing.assert_frame_equal(car[cdcg.columns], cdcg)
        assert evaluate(fits["CAR"], truth, "CAR")["CAR"].mean == car["CAR"].min()
        assert evaluate(fits["CDCG"], truth, "CDCG")["CDCG"].mean == car["CDCG"].max()
        assert car["CAR"].idxmin() != car["CDCG"].idxmax()  # else this shows nothing

    def test_validation_keeps_the_best_epoch_and_stops(self, log: Log, truth: Gains) -> None:
        learner = DLCE(random_state=0, factors=8, epochs=200, learning_rate=0.2, threads=1)
        learner.fit(log, validation=truth, metric="CAR", patience=3, validate_every=1)
        values = learner.history_["CAR"].tolist()
        assert len(values) < 200
        assert len(values) == int(np.argmin(values)) + 1 + 3
        assert evaluate(learner, truth, "CAR")["CAR"].mean == pytest.approx(min(values))


class TestProgress:
    """What a person sees at 80 columns."""

    def shown(self, learner: Learner, monkeypatch: Any, capsys: Any, log: Log, **options: Any) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        learner.fit(log, show_progress=True, **options)
        text: str = capsys.readouterr().err.strip("\n")
        assert len(text.splitlines()) == 1
        assert len(text) <= 80
        return text.rstrip()

    def test_an_early_stop_completes_the_bar(self, log: Log, truth: Gains, monkeypatch: Any, capsys: Any) -> None:
        learner = DLCE(random_state=0, factors=8, epochs=200, learning_rate=0.2)
        line = self.shown(
            learner, monkeypatch, capsys, log, validation=truth, metric="CAR", patience=3, validate_every=1
        )
        last = len(learner.history_)
        best = int(learner.history_["CAR"].to_numpy().argmin()) + 1
        assert f" {last}/{last} " in line
        assert "stopped early" in line
        assert line.endswith(f"(epoch {best})")

    def test_a_whole_fit(self, log: Log, monkeypatch: Any, capsys: Any) -> None:
        line = self.shown(BPR(random_state=0, factors=4, epochs=7), monkeypatch, capsys, log)
        assert " 7/7 " in line
        assert "stopped" not in line

    def test_nothing_in_a_pipe(self, log: Log, capsys: Any) -> None:
        BPR(random_state=0, factors=4, epochs=2).fit(log)
        Popular().fit(log, show_progress=True)
        assert capsys.readouterr().err == ""


class TestDivergence:
    @pytest.mark.parametrize("kind", FACTORS)
    @pytest.mark.parametrize("rate", [1.0, 30.0])
    def test_a_rate_far_too_large_is_refused(self, kind: Any, rate: float, log: Log) -> None:
        learner = kind(random_state=0, factors=16, learning_rate=rate, epochs=50)
        with pytest.raises(
            DivergedError, match=rf"diverged in epoch \d+: learning_rate={rate:g} .* try {rate / 10:.2g}"
        ):
            learner.fit(log)

    @pytest.mark.parametrize(
        ("losses", "diverged"),
        [
            ([0.7, 0.6, 0.5, 0.9], None),
            ([0.7, 0.6, 6.9], None),
            ([0.7, 0.6, 7.1], 3),
            ([0.7, float("nan")], 2),
            ([float("inf")], 1),
            ([-0.5, -60.0, 0.1], None),  # a signed loss may fall below 0
        ],
    )
    def test_the_rule(self, losses: list[float], diverged: int | None, log: Log) -> None:
        class Scripted(FactorLearner):
            def prepare(self, log: Log) -> Any:
                return Epoch(lambda tables, seed, number, *_: Stats(losses[number], 1, 0, True, zero_loss=0.7), 1)

        learner = Scripted(factors=2, epochs=len(losses))
        if diverged is None:
            assert learner.fit(log).history_["loss"].tolist() == losses
        else:
            with pytest.raises(DivergedError, match=rf"in epoch {diverged}:"):
                learner.fit(log)

    @pytest.mark.parametrize("kind", FACTORS)
    @pytest.mark.parametrize("size", [(40, 5), (200, 30), (30, 200)])
    @pytest.mark.parametrize("overlap", [0.1, 0.0001])
    def test_ordinary_fits_are_not(
        self, kind: Any, size: tuple[int, int], overlap: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ratios: list[float] = []
        monkeypatch.setattr(Stats, "diverged", property(lambda s: bool(ratios.append(s.loss / s.zero_loss))))  # type: ignore[func-returns-value]
        world = World.synthetic(*size, random_state=3, overlap=overlap)
        log = (world if overlap == 0.1 else world.personalized()).sample(6, random_state=4).log
        kind(random_state=0, factors=16).fit(log, None)
        assert max(ratios) < 3  # the limit of 10 is never near

    def test_advice_fits_the_cause(self, log: Log) -> None:
        with pytest.raises(DivergedError, match=r"regularization is 100 and must be below 1; lower one"):
            BPR(random_state=0, factors=4, learning_rate=1.0, regularization=100.0).fit(log)
        with pytest.raises(DivergedError, match="or a larger cap"):
            DLCE(random_state=0, factors=4, learning_rate=50.0).fit(log)
        with pytest.raises(DivergedError) as error:
            BPR(random_state=0, factors=4, learning_rate=50.0).fit(log)
        assert "cap" not in str(error.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DivergedError])
def test_a_refit_that_ends_early_leaves_the_learner_as_it_was(error: type[BaseException], log: Log) -> None:
    def stop(_: Learner, record: Record) -> None:
        raise KeyboardInterrupt

    learner = DLCE(random_state=0, factors=4, epochs=3).fit(log)
    learner.set_params(learning_rate=50.0 if error is DivergedError else 0.01)
    before = dict(vars(learner))
    with pytest.raises(error):
        learner.fit(log.take(log.time < 5), callback=stop, validate_every=1)
    assert vars(learner).keys() == before.keys()
    assert all(vars(learner)[name] is value for name, value in before.items())


class TestTrainingLog:
    def test_validation_on_the_training_log_is_said_once(self, log: Log) -> None:
        with pytest.warns(tr.errors.TrainingLogWarning, match="come from the training log") as warned:
            BPR(random_state=0, factors=4, epochs=5).fit(log, tr.gains.ips(log), validate_every=1)
        assert len(warned) == 1


class TestCheckpoint:
    def test_one_of_another_fit_is_refused(self, log: Log, truth: Gains, tmp_path: Path) -> None:
        path = tmp_path / "state"

        def stop(_: Learner, record: Record) -> None:
            raise KeyboardInterrupt

        options: dict[str, Any] = {"checkpoint": path, "validate_every": 3}
        with pytest.raises(KeyboardInterrupt):
            DLCE(random_state=0, epochs=9, factors=4).fit(log, truth, checkpoint_minutes=0, callback=stop, **options)
        assert path.exists()
        flat = log.with_propensity(np.full(len(log), 0.5))
        others: list[tuple[DLCE, Log, Gains | None, dict[str, Any]]] = [
            (DLCE(random_state=1, epochs=9, factors=4), log, truth, options),
            (DLCE(random_state=0, epochs=9, factors=4, cap=0.3), log, truth, options),
            (tr.DLTO(random_state=0, epochs=9, factors=4), log, truth, options),
            (DLCE(random_state=0, epochs=9, factors=4), flat, truth, options),
            (DLCE(random_state=0, epochs=9, factors=4), log, None, options),
            (DLCE(random_state=0, epochs=9, factors=4), log, truth.where(lambda value: value > 0), options),
            (DLCE(random_state=0, epochs=9, factors=4), log, truth, {**options, "metric": ["CDCG", "CAR"]}),
            (DLCE(random_state=0, epochs=9, factors=4), log, truth, {**options, "validate_every": 2}),
        ]
        for learner, other, gains, arguments in others:
            with pytest.raises(InputError, match="belongs to another fit"):
                learner.fit(other, gains, **arguments)

    def test_a_generator_has_no_checkpoint(self, log: Log, tmp_path: Path) -> None:
        learner = BPR(random_state=np.random.default_rng(0), factors=4, epochs=2)
        with pytest.raises(InputError, match="a checkpoint needs random_state"):
            learner.fit(log, checkpoint=tmp_path / "state")

    @pytest.mark.integration
    def test_killed_and_resumed_is_bit_identical(self, tmp_path: Path) -> None:
        """kill -9 in the middle of a fit; the same call afterwards ends with the same factors."""
        script = (
            "import sys, taurank as tr\n"
            "world = tr.World.synthetic(300, 60, random_state=0)\n"
            "log, truth = (lambda s: (s.log, s.truth))(world.sample(10, random_state=1))\n"
            "model = tr.DLCE(factors=16, epochs=600, random_state=4)\n"
            "model.fit(log, truth, patience=None, checkpoint=sys.argv[1], checkpoint_minutes=0)\n"
            "model.save(sys.argv[2])\n"
        )
        state, killed, whole = (tmp_path / name for name in ("state", "killed", "whole"))
        command = [sys.executable, "-c", script]
        process = subprocess.Popen([*command, str(state), str(killed)])
        while not state.exists():
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(0.05)
        process.kill()
        process.wait()
        assert state.exists()
        assert not killed.exists()
        subprocess.run([*command, str(state), str(killed)], check=True)
        subprocess.run([*command, str(tmp_path / "other"), str(whole)], check=True)
        assert killed.read_bytes() == whole.read_bytes()
        assert not state.exists()


class TestParams:
    def test_clone_of_scikit_learn(self) -> None:
        clone = pytest.importorskip("sklearn.base").clone
        assert clone(DLCE(cap=0.3)).cap == 0.3

    def test_set_params_is_checked_and_changes_all_or_nothing(self) -> None:
        learner = DLCE(cap=0.3)
        with pytest.raises(InputError, match="DLCE has no hyper-parameter 'caps'; it has cap, "):
            learner.set_params(caps=0.1)
        with pytest.raises(InputError, match="epochs must be"):
            learner.set_params(cap=0.5, epochs=0)
        assert learner.cap == 0.3
        assert learner.set_params(cap=0.5, epochs=7).get_params()["epochs"] == 7


ODD = [10**400, -1, 0, "4", "many", None, float("nan"), float("inf"), [4], {}, True, 2.5, b"4", object(), 10**5000]


@pytest.mark.parametrize(
    "name",
    ["factors", "epochs", "learning_rate", "regularization", "rate_decay", "threads", "random_state"],
)
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_odd_hyper_parameters_end_in_one_sentence(name: str, value: Any, log: Log) -> None:
    fine = {
        "threads": (None,), "random_state": (None, 0, 10**400, 10**5000), "regularization": (0, 2.5),
        "learning_rate": (), "factors": (), "epochs": (), "rate_decay": (),
    }[name]  # fmt: skip
    options = {"factors": 2, "epochs": 1, "random_state": 0, name: value}
    if value in fine and not isinstance(value, bool):
        BPR(**options).fit(log)
        return
    with pytest.raises(InputError, match=name) as error:
        BPR(**options).fit(log)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"validation": "gains"}, "validation must be a Gains"),
        ({"metric": "CDGC"}, "unknown metric 'CDGC'"),
        ({"metric": []}, "metric is empty"),
        ({"metric": ["CDCG", None]}, "metric"),
        ({"patience": 0}, "patience must be an integer ≥ 1"),
        ({"validate_every": 0}, "validate_every must be"),
        ({"checkpoint_minutes": -1}, "checkpoint_minutes must be"),
        ({"checkpoint": 3}, "3 cannot be written"),
        ({"callback": "print"}, "callback must be a function"),
    ],
)
@pytest.mark.parametrize("kind", [BPR, Popular])
def test_odd_arguments_of_fit(kind: Any, arguments: Any, sentence: str, log: Log) -> None:
    with pytest.raises(InputError, match=sentence):
        kind().fit(log, **arguments)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (DLCE, {"factors": 0}, "factors must be an integer between 1 and 65536, got 0"),
    (DLCE, {"learning_rate": 0}, "learning_rate must be larger than 0"),
    (DLCE, {"rate_decay": 1.5}, "rate_decay must be a number between 0 and 1"),
    (DLCE, {"steepness": -1}, "steepness must be a number ≥ 0"),
    (DLCE, {"loss": "square"}, "loss must be one of"),
    (DLCE, {"control_weight": 1.5}, "control_weight must be a number between 0 and 1"),
    (DLCE, {"cap": 1.5}, "cap"),
    (ULBPR, {"positive_share": 1.5}, "positive_share must be a number between 0 and 1, got 1.5"),
    (ULRMF, {"positive_share": 1.5}, "positive_share must be a number between 0 and 1, got 1.5"),
    (ULRMF, {"positives": -0.1}, "positives must be a number between 0 and 1"),
    (CausE, {"tie": -1}, "tie must be a number ≥ 0"),
]


@pytest.mark.parametrize(("kind", "params", "message"), REFUSED)
def test_hyper_parameters_out_of_bounds_are_refused(kind: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kind(**params)
