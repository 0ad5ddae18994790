"""``taurank demo``: the main job on real shopping data.

Ten weeks of shopping with mailers as recommendations; three rankings learned from them; the purchases each
causes in ten other weeks, by the truth (known only in a semi-synthetic world) and by the estimate that a real
shop can make from its log.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from taurank.data.log import Log
from taurank.errors import OverlapWarning
from taurank.estimation import gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.metrics import position_weights
from taurank.evaluation.results import Result
from taurank.learners import BPR, DLCE, Learner, Popular
from taurank.worlds import dunnhumby
from taurank.worlds.world import World

# Sato et al. 2020, table "Statistics of datasets": 93 weeks of the original files.
PAPER = {"users": 2309, "items": 1372, "treated_rate": 0.0145, "control_rate": 0.0101, "propensity": 0.153}

CAP = 0.01
METRICS = ("CP@10", "CP@100", "CDCG")


def run(seed: int = 0, threads: int | None = None) -> None:
    """Build the Dunnhumby category world, fit Popular, BPR and DLCE, and print the effects of each."""
    console = Console(highlight=False)
    began = time.monotonic()
    with console.status("Building the Dunnhumby category world (cached for the next run)"):
        world = dunnhumby.world("category")
    here = {name: value for name, value in world.describe().to_dict("records")[0].items() if name in PAPER}
    datasets = pd.DataFrame([here, PAPER], index=[f"here, {world.origin['weeks']} weeks", "paper, 93 weeks"])
    console.print(f"The dataset, and the paper's\n\n{datasets.to_string(float_format='{:.4f}'.format)}\n")
    train, validation, test = (world.sample(times, seed + n, threads) for n, times in enumerate((10, 1, 10)))
    learners = _fitted(train.log, validation.log, seed, threads)
    measures = {"truth": test.truth, "estimate": gains.capped_ips(test.log, CAP)}
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # printed below the table
        for name, learner in learners.items():
            results[name] = {by: evaluate(learner, each, METRICS, threads=threads) for by, each in measures.items()}
    console.print("Purchases caused, per user and week: truth, and estimate from the log\n")
    console.print(_comparison(results))
    console.print("(± is half of the 95% interval over users)\n")
    console.print(_meaning({name: _bought(world, learner) for name, learner in learners.items()}, results))
    shares = {name: measured["estimate"]["CP@10"].overlap_share or 0.0 for name, measured in results.items()}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    console.print(
        "An estimate is only as good as its overlap. Share of the estimated CP@10 that rests on pairs which were "
        f"always or never recommended, so that the log has no information on their effect: {listed}."
    )
    console.print(f"[dim]{time.monotonic() - began:.0f} seconds[/dim]")


def _fitted(train: Log, validation: Log, seed: int, threads: int | None) -> dict[str, Learner]:
    options: dict[str, Any] = {"factors": 200, "random_state": seed, "threads": threads}
    bpr = BPR(**options, learning_rate=0.01, regularization=0.01, epochs=50, rate_decay=1.0)
    dlce = DLCE(**options, learning_rate=0.003, regularization=0.03, cap=CAP, epochs=300, rate_decay=1.0)
    return {
        "Popular": Popular().fit(train),
        "BPR": bpr.fit(train, gains.outcome(validation), metric="DCG"),
        "DLCE": dlce.fit(train, gains.capped_ips(validation, CAP), patience=None),
    }


def _comparison(results: dict[str, dict[str, Result]]) -> str:
    rows = [
        {
            "ranking": name if by == "truth" else "", "by": by,
            **{metric: f"{one.mean:.4f} ± {(one.high - one.low) / 2:.4f}" for metric, one in result.items()},
        }
        for name, measured in results.items()
        for by, result in measured.items()
    ]  # fmt: skip
    return pd.DataFrame(rows).to_string(index=False)


def _meaning(bought: dict[str, float], results: dict[str, dict[str, Result]]) -> str:
    """The figures in words: purchases among the ten items shown, and those the recommendation caused."""
    caused = {name: 10 * measured["truth"]["CP@10"].mean for name, measured in results.items()}
    return (
        f"If every user is shown the ten items that BPR ranks first, they buy {bought['BPR']:.2f} of them per week, "
        f"but only {caused['BPR']:.2f} of these purchases are caused by the recommendation. With DLCE they buy "
        f"{bought['DLCE']:.2f}, of which {caused['DLCE']:.2f} are caused by it: "
        f"{caused['DLCE'] / caused['BPR']:.1f} times the effect. The estimate from the log alone is "
        f"{10 * results['DLCE']['estimate']['CP@10'].mean:.2f}."
    )


def _bought(world: World, learner: Learner) -> float:
    """Purchases per user among the ten items, if they are recommended."""
    weights = position_weights(learner.score_block(np.arange(world.n_users, dtype=np.int32)), "P@10")
    return float(10 * (weights * world.treated_rate).sum(axis=1).mean())
