"""Logged bandit feedback, the dictionaries of the Open Bandit Pipeline (obp), as logs and back.

In a round one action was drawn with probability ``pscore`` and earned a reward. As a log: the action is an item that
was recommended, the reward its outcome, and what was not drawn earned nothing. A round is a user of its own, unless
the users are known, whose rounds are then counted by time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from taurank._checks import check_choice, check_positions
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Ids
from taurank.data.reader import OUTCOME_VALUE, PROPENSITY
from taurank.errors import InputError

FORM = "a dictionary of obp has n_actions, action, reward and pscore, and position or None"


def read_feedback(feedback: Any, users: Any, positions: str) -> dict[str, Any]:
    """The fields of the log; ``Log.from_bandit_feedback`` explains them."""
    check_choice("positions", positions, ("apart", "item"))
    if not isinstance(feedback, Mapping) or not {"n_actions", "action", "reward", "pscore"} <= set(feedback):
        raise InputError(f"{FORM}; got {sorted(feedback) if isinstance(feedback, Mapping) else type(feedback)}.")
    n_actions, rounds = int(feedback["n_actions"]), len(feedback["action"])
    action = check_positions("action", feedback["action"], n_actions).astype(np.int32)
    try:
        reward, pscore = (np.array(feedback[name], np.float64) for name in ("reward", "pscore"))
    except (TypeError, ValueError) as error:
        raise InputError("reward and pscore must be numbers, one per round.") from error
    position = np.zeros(rounds, np.int32) if feedback.get("position") is None else np.asarray(feedback["position"])
    if {action.shape, reward.shape, pscore.shape, position.shape} != {(rounds,)}:
        raise InputError("action, reward, pscore and position must have one number per round.")
    n_positions = int(position.max(initial=0)) + 1
    position = check_positions("position", position, n_positions).astype(np.int32)
    PROPENSITY.check(pscore)
    OUTCOME_VALUE.check(reward)
    user_ids = Ids(np.arange(rounds) if users is None else pd.unique(pd.Series(users)), "user_id")
    user = np.arange(rounds, dtype=np.int32) if users is None else user_ids.encode(users)
    if len(user) != rounds:
        raise InputError(f"users must name the user of each of the {rounds:,} rounds, got {len(user):,}.")
    if users is not None:
        if n_positions > 1 and positions == "apart":
            raise InputError("with users the rounds of each are counted by time; set positions='item'.")
        time = pd.Series(user).groupby(user).cumcount().to_numpy(np.int32)
    else:
        time = position if positions == "apart" else np.zeros(rounds, np.int32)
    items: Any = np.arange(n_actions)
    candidates = None
    if positions == "item" and n_positions > 1:  # a round could draw the actions of its own position
        items = [f"{item}@{place}" for place in range(n_positions) for item in range(n_actions)]
        every = (position[:, None] * np.int64(n_actions) + np.arange(n_actions)).ravel()
        candidates = (np.repeat(user, n_actions), every, np.repeat(time, n_actions))
        action = (position * n_actions + action).astype(np.int32)
    catalog = Catalog(user_ids, Ids(items, "item_id"), Ids(np.arange(time.max(initial=0) + 1), "time"))
    binary = bool(np.isin(reward, (0.0, 1.0)).all())
    return {
        "catalog": catalog, "user": user, "item": action, "time": time, "treated": np.ones(rounds, np.int8),
        "outcome": (reward > 0).astype(np.int8), "propensity": pscore, "value": None if binary else reward,
        "timed": catalog.n_times > 1, "eligibility": Eligibility.from_positions(catalog, (user, time), candidates),
    }  # fmt: skip
