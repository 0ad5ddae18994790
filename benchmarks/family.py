"""DLCE's family on The Complete Journey: the control weight ρ, and CUBN beside the other baselines.

    python benchmarks/family.py [weight] [neighbors] [channels] [--quick]

weight      DLCE with ρ = 0 (DLTO), 0.3, 0.6, 0.8, 1 on both category worlds of the paper
neighbors   CUBN by similarity of outcomes and of treatments, beside Popular, CountingBayes and DLCE
channels    mailer and display: the best channel or none, against one channel for all

A number is the metric by the true effects of ten fresh times, the mean over training draws.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd

sys.path[:0] = [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)]

import taurank as tr  # noqa: E402
from features import run_parts  # noqa: E402

METRICS = ["CP@10", "CP@100", "CDCG"]
DLCE: dict[str, Any] = {"factors": 64, "epochs": 100, "learning_rate": 0.003, "cap": 0.03, "threads": 1}


def worlds() -> dict[str, tr.World]:
    original = tr.dunnhumby.world("category")
    return {"original": original, "personalized": original.personalized()}


def measured(learner: tr.Learner, world: tr.World, seeds: range) -> dict[str, float]:
    truth = world.sample(10, random_state=1000).truth
    rows = []
    for seed in seeds:
        learner.set_params(random_state=seed).fit(world.sample(10, random_state=seed + 1).log, None)
        result = tr.evaluate(learner, truth, METRICS)
        rows.append({name: result[name].mean for name in METRICS})
    return {name: float(np.mean([row[name] for row in rows])) for name in METRICS}


def benchmark_weight(quick: bool) -> pd.DataFrame:
    rows = []
    for name, world in worlds().items():
        for weight in (0.0, 0.3, 0.6, 0.8, 1.0):
            learner = tr.DLCE(**DLCE, control_weight=weight)
            rows.append({"world": name, "ρ": weight, **measured(learner, world, range(1 if quick else 3))})
    return pd.DataFrame(rows)


def benchmark_neighbors(quick: bool) -> pd.DataFrame:
    learners: dict[str, Any] = {
        "Popular": tr.Popular(),
        "CUBN, outcome": tr.CUBN(),
        "CUBN, treatment": tr.CUBN(similarity="treatment"),
        "CIBN, outcome": tr.CUBN(by="item"),
        "CountingBayes": tr.CountingBayes(),
        "DLCE": tr.DLCE(**DLCE),
    }
    rows = [
        {"world": name, "learner": label, **measured(learner, world, range(1))}
        for name, world in worlds().items()
        for label, learner in learners.items()
    ]
    return pd.DataFrame(rows)


def benchmark_channels(quick: bool) -> pd.DataFrame:
    """Ten items per user: the true effect of what is recommended, per item and channel."""
    by_channel = {channel: tr.dunnhumby.world("category", kind=channel) for channel in ("mailer", "display")}
    first, second = by_channel.values()
    users = [user for user in first.users.values.to_pylist() if second.users.encode([user])[0] >= 0]
    items = [item for item in first.items.values.to_pylist() if second.items.encode([item])[0] >= 0]
    effects, models = {}, {}
    for channel, world in by_channel.items():
        here = np.ix_(world.users.encode_known(users), world.items.encode_known(items))
        effects[channel] = (world.treated_rate - world.control_rate)[here]
        rows = world.sample(10, random_state=1).log.to_frame()
        rows = rows[rows["user_id"].isin(users) & rows["item_id"].isin(items)]
        models[channel] = tr.CountingBayes().fit(tr.Log.from_frame(rows, users=users, items=items))
    policies = {
        "best channel or none": models,
        **{f"{channel} alone": {channel: models[channel]} for channel in models},
    }
    table = []
    for label, learners in policies.items():
        lists = tr.BestChannel(learners).recommend(k=10)
        user, item = (ids.encode_known(lists[name]) for ids, name in
                      ((models["mailer"].users, "user_id"), (models["mailer"].items, "item_id")))  # fmt: skip
        true = np.select(
            [lists["channel"] == channel for channel in effects], [each[user, item] for each in effects.values()]
        )
        share = float((lists["channel"] == "display").mean())
        table.append((label, len(lists) / len(users), share, float(true.sum() / len(users))))
    columns = ["recommended", "items per user", "share of displays", "purchases caused per user"]
    return pd.DataFrame(table, columns=columns)


if __name__ == "__main__":
    parts = {"weight": benchmark_weight, "neighbors": benchmark_neighbors, "channels": benchmark_channels}
    run_parts(parts, __doc__)
