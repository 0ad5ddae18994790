"""Bandit feedback as obp has it: IPS is the sum by hand, on made-up rounds and on the Open Bandit Dataset."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import openbandit
import taurank as tr
from taurank.errors import InputError

FEEDBACK: dict[str, Any] = {
    "n_rounds": 6,
    "n_actions": 3,
    "context": np.zeros((6, 2)),
    "action_context": None,
    "action": np.array([0, 2, 1, 2, 0, 2]),
    "position": np.array([0, 1, 1, 0, 1, 0]),
    "reward": np.array([1, 0, 1, 1, 0, 0]),
    "pscore": np.array([0.5, 0.25, 0.2, 0.6, 0.3, 0.1]),
}
POLICY = np.array([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])  # by position and action


def of_rounds(positions: str) -> pd.DataFrame:
    """The policy in each round: how likely each action is at its position."""
    table: pd.DataFrame = openbandit.in_rounds(FEEDBACK, POLICY)
    if positions == "item":
        place = FEEDBACK["position"][table["user_id"]]
        table["item_id"] = [f"{item}@{at}" for item, at in zip(table["item_id"], place, strict=True)]
    return table


def by_hand(feedback: dict[str, Any], policy: Any) -> float:
    chance = np.asarray(policy)[feedback["position"], feedback["action"]]
    return float((chance / feedback["pscore"] * feedback["reward"]).mean())


@pytest.mark.parametrize("positions", ["apart", "item"])
def test_ips_is_the_sum_by_hand(positions: str) -> None:
    log = tr.Log.from_bandit_feedback(FEEDBACK, positions=positions)
    assert (len(log), log.n_users, log.cells) == (6, 6, 18)
    result = tr.evaluate(of_rounds(positions), tr.gains.ips(log), "CP@1")["CP@1"]
    assert result.mean == pytest.approx(by_hand(FEEDBACK, POLICY), rel=1e-15)


def test_a_dictionary_comes_back() -> None:
    again = tr.Log.from_bandit_feedback(FEEDBACK).to_bandit_feedback(position="time")
    for name in ("n_rounds", "n_actions", "action", "position", "reward", "pscore"):
        np.testing.assert_array_equal(again[name], FEEDBACK[name])
    valued = {**FEEDBACK, "reward": FEEDBACK["reward"] * 2.5, "position": None}
    log = tr.Log.from_bandit_feedback(valued)
    assert log.n_times == 1
    np.testing.assert_array_equal(log.to_bandit_feedback()["reward"], valued["reward"])
    assert log.to_bandit_feedback()["position"] is None


def test_rounds_of_known_users_are_counted_by_time() -> None:
    users = ["ann", "bob", "ann", "ann", "bob", "cy"]
    log = tr.Log.from_bandit_feedback({**FEEDBACK, "position": None}, users)
    assert log.users.values.to_pylist() == ["ann", "bob", "cy"]
    assert log.time.tolist() == [0, 0, 1, 2, 1, 0]
    assert log.cells == 6 * 3
    assert tr.Log.from_bandit_feedback(FEEDBACK, users, positions="item").cells == 6 * 3


@pytest.mark.parametrize(
    ("feedback", "options", "sentence"),
    [
        ([1], {}, "a dictionary of obp has n_actions, action, reward and pscore"),
        ({"action": [1]}, {}, "has n_actions, action, reward and pscore"),
        ({**FEEDBACK, "n_actions": 2}, {}, "action positions must be between 0 and 1; 3 are not"),
        ({**FEEDBACK, "reward": -FEEDBACK["reward"]}, {}, "'value' must be a finite number ≥ 0; 3 rows are not"),
        ({**FEEDBACK, "pscore": FEEDBACK["pscore"] * 2}, {}, "strictly between 0 and 1; 2 rows are not"),
        ({**FEEDBACK, "reward": [1]}, {}, "must have one number per round"),
        (FEEDBACK, {"users": ["ann"] * 6}, "set positions='item'"),
        (FEEDBACK, {"users": ["ann"], "positions": "item"}, "the user of each of the 6 rounds, got 1"),
        (FEEDBACK, {"positions": "both"}, "positions must be one of"),
    ],
)
def test_refuses(feedback: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tr.Log.from_bandit_feedback(feedback, **options)


OBP = importlib.util.find_spec("obp")  # it is not imported: its files are enough


@pytest.mark.skipif(
    OBP is None, reason="the files of the Open Bandit Dataset come with obp: pip install obp --no-deps"
)
@pytest.mark.parametrize("campaign", ["all", "men", "women"])
def test_open_bandit(campaign: str) -> None:
    """From the uniform policy's rounds the value of the other policy, whose own rounds say what it is."""
    assert OBP is not None
    folder = Path(str(OBP.origin)).parent / "dataset/obd"
    random, bts = (openbandit.read_campaign(folder / policy / campaign) for policy in ("random", "bts"))
    policy = openbandit.drawn_by(bts)
    log = tr.Log.from_bandit_feedback(random)
    result = tr.evaluate(openbandit.in_rounds(random, policy), tr.gains.ips(log), "CP@1")["CP@1"]
    assert result.mean == pytest.approx(by_hand(random, policy), rel=1e-12)
    assert result.low < bts["reward"].mean() < result.high
