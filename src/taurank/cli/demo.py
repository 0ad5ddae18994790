"""``taurank demo``: the main job on real shopping data.

Ten weeks of shopping with mailers as recommendations; rankings learned from them; the purchases each causes in ten
other weeks, by the truth (known only in a semi-synthetic world) and by the estimate that a real shop can make from
its log.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from taurank.errors import OverlapWarning
from taurank.estimation import gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.metrics import position_weights
from taurank.learners import BPR, DLCE, EmpiricalBayes, Popular
from taurank.worlds import dunnhumby

# Sato et al. 2020, table "Statistics of datasets": 93 weeks of the original files.
PAPER = {"users": 2309, "items": 1372, "treated_rate": 0.0145, "control_rate": 0.0101, "propensity": 0.153}

CAP = 0.01
METRICS = ("CP@10", "CP@100", "CDCG")


def run(seed: int = 0, threads: int | None = None) -> None:
    """Build the Dunnhumby category world, fit four learners, and print the effects of each."""
    console = Console(highlight=False)
    began = time.monotonic()
    with console.status("Building the Dunnhumby category world (cached for the next run)"):
        world = dunnhumby.world("category")
    here = {name: value for name, value in world.describe().to_dict("records")[0].items() if name in PAPER}
    datasets = pd.DataFrame([here, PAPER], index=[f"here, {world.origin['weeks']} weeks", "paper, 93 weeks"])
    console.print(f"The dataset, and the paper's\n\n{datasets.to_string(float_format='{:.4f}'.format)}\n")
    train, validation, test = (world.sample(times, seed + n, threads) for n, times in enumerate((10, 1, 10)))
    options: dict[str, Any] = {"factors": 200, "random_state": seed, "threads": threads}
    bpr = BPR(**options, learning_rate=0.01, regularization=0.01, epochs=50, rate_decay=1.0)
    dlce = DLCE(**options, learning_rate=0.003, regularization=0.03, cap=CAP, epochs=300, rate_decay=1.0)
    learners = {
        "Popular": Popular().fit(train.log),
        "BPR": bpr.fit(train.log, gains.outcome(validation.log), metric="DCG"),
        "DLCE": dlce.fit(train.log, gains.capped_ips(validation.log, CAP), patience=None),
        "EmpiricalBayes": EmpiricalBayes(threads=threads).fit(train.log),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # printed below the table
        truth, estimate = (
            {name: evaluate(learner, by, METRICS, threads=threads) for name, learner in learners.items()}
            for by in (test.truth, gains.capped_ips(test.log, CAP))
        )
    rows = [
        {"ranking": name if by == "truth" else "", "by": by,
         **{metric: f"{one.mean:.4f} ± {(one.high - one.low) / 2:.4f}" for metric, one in results[name].items()}}
        for name in learners for by, results in (("truth", truth), ("estimate", estimate))
    ]  # fmt: skip
    console.print("Purchases caused, per user and week: truth, and estimate from the log\n")
    console.print(pd.DataFrame(rows).to_string(index=False))
    console.print("(± is half of the 95% interval over users)\n")
    users = np.arange(world.n_users, dtype=np.int32)
    lists = {name: position_weights(learner.score_block(users), "P@10") for name, learner in learners.items()}
    bought = {name: 10 * (weights * world.treated_rate).sum(axis=1).mean() for name, weights in lists.items()}
    caused = {name: 10 * result["CP@10"].mean for name, result in truth.items()}
    first, best = "BPR", "EmpiricalBayes"
    console.print(
        f"If every user is shown the ten items that {first} ranks first, they buy {bought[first]:.2f} of them per "
        f"week, but only {caused[first]:.2f} of these purchases are caused by the recommendation. With {best} they "
        f"buy {bought[best]:.2f}, of which {caused[best]:.2f} are caused by it: {caused[best] / caused[first]:.1f} "
        f"times the effect. The estimate from the log alone is {10 * estimate[best]['CP@10'].mean:.2f}."
    )
    shares = ", ".join(f"{name} {result['CP@10'].overlap_share or 0.0:.0%}" for name, result in estimate.items())
    console.print(
        "An estimate is only as good as its overlap. Share of the estimated CP@10 that rests on pairs which were "
        f"always or never recommended, so that the log has no information on their effect: {shares}."
    )
    console.print(f"[dim]{time.monotonic() - began:.0f} seconds[/dim]")
