"""Evaluate each policy of the Open Bandit Dataset from the rounds of the other.

Usage: python examples/openbandit.py [FOLDER]. The folder is obp/dataset/obd of the wheel ``obp``, by default that of
the installed one; obp itself is not imported.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import taurank as tr


def read_campaign(folder: Path) -> dict[str, Any]:
    """What obp's ``OpenBanditDataset`` makes of a folder."""
    rows = pd.read_csv(folder / f"{folder.name}.csv", index_col=0).sort_values("timestamp")
    return {
        "n_actions": int(rows["item_id"].max()) + 1,
        "action": rows["item_id"].to_numpy(),
        "position": rows["position"].rank(method="dense").to_numpy(int) - 1,
        "reward": rows["click"].to_numpy(),
        "pscore": rows["propensity_score"].to_numpy(),
    }


def drawn_by(feedback: dict[str, Any]) -> Any:
    """How often a policy drew each action at each position: positions × actions."""
    counts = np.zeros((feedback["position"].max() + 1, feedback["n_actions"]))
    np.add.at(counts, (feedback["position"], feedback["action"]), 1.0)
    return counts / counts.sum(axis=1, keepdims=True)


def in_rounds(feedback: dict[str, Any], policy: Any) -> pd.DataFrame:
    """A policy as a table: how likely it shows each action in each round."""
    chances = policy[feedback["position"]]
    user, item = np.indices(chances.shape)
    return pd.DataFrame({"user_id": user.ravel(), "item_id": item.ravel(), "probability": chances.ravel()})


def main(folder: Path) -> None:
    print("campaign  rounds of  policy  clicks per round: estimate, interval     by hand     its own rounds")
    for campaign in ("all", "men", "women"):
        logged = {policy: read_campaign(folder / policy / campaign) for policy in ("random", "bts")}
        for behavior, other in (("random", "bts"), ("bts", "random")):
            rounds, policy = logged[behavior], drawn_by(logged[other])
            if other == "random":
                policy = np.full_like(policy, 1 / rounds["n_actions"])
            log = tr.Log.from_bandit_feedback(rounds)
            result = tr.evaluate(in_rounds(rounds, policy), tr.gains.ips(log), "CP@1")["CP@1"]
            weight = policy[rounds["position"], rounds["action"]] / rounds["pscore"]
            print(
                f"{campaign:9} {behavior:10} {other:7} {result.mean:.6f} ({result.low:.4f} to {result.high:.4f})"
                f"{np.mean(weight * rounds['reward']):22.6f}{logged[other]['reward'].mean():15.4f}"
            )


if __name__ == "__main__":
    spec = importlib.util.find_spec("obp")
    if len(sys.argv) < 2 and (spec is None or spec.origin is None):
        sys.exit("pip install obp==0.4.1 --no-deps, or name the folder obp/dataset/obd.")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(str(spec and spec.origin)).parent / "dataset/obd")
