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
import rich.box
from rich.console import Console
from rich.table import Table

from taurank.data.log import Log
from taurank.errors import OverlapWarning
from taurank.estimation import gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.metrics import position_weights
from taurank.evaluation.results import MetricResult, Result
from taurank.learners import BPR, DLCE, Learner, Popular
from taurank.worlds import dunnhumby
from taurank.worlds.world import Sample, World

# Sato et al. 2020, table "Statistics of datasets": 93 weeks of the original files.
PAPER = {"users": 2309, "items": 1372, "treated_rate": 0.0145, "control_rate": 0.0101, "propensity": 0.153}

CAP = 0.01
METRICS = ("CP@10", "CP@100", "CDCG")
Measured = tuple[Result, Result]  # by the truth, and by the estimate


def run(seed: int = 0, threads: int | None = None) -> None:
    """Build the Dunnhumby category world, fit Popular, BPR and DLCE, and print the effects of each."""
    console = Console()
    began = time.monotonic()
    with console.status("Building the Dunnhumby category world (cached for the next run)"):
        world = dunnhumby.world("category")
    console.print(_statistics(world))
    train, validation, test = (world.sample(times, seed + n, threads) for n, times in enumerate((10, 1, 10)))
    learners = _fitted(train.log, validation.log, seed, threads)
    results = {type(learner).__name__: _measured(learner, test, threads) for learner in learners}
    console.print(_comparison(results))
    console.print(_meaning(world, learners, results))
    console.print(_overlap(results))
    console.print(f"[dim]{time.monotonic() - began:.0f} seconds[/dim]")


def _fitted(train: Log, validation: Log, seed: int, threads: int | None) -> list[Learner]:
    options: dict[str, Any] = {"factors": 200, "random_state": seed, "threads": threads}
    bpr = BPR(**options, learning_rate=0.01, regularization=0.01, epochs=50, rate_decay=1.0)
    dlce = DLCE(**options, learning_rate=0.003, regularization=0.03, cap=CAP, epochs=300, rate_decay=1.0)
    return [
        Popular().fit(train),
        bpr.fit(train, gains.outcome(validation), metric="DCG"),
        dlce.fit(train, gains.capped_ips(validation, CAP), patience=None),
    ]


def _measured(learner: Learner, test: Sample, threads: int | None) -> Measured:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # printed below the table
        by_truth = evaluate(learner, test.truth, METRICS, threads=threads)
        return by_truth, evaluate(learner, gains.capped_ips(test.log, CAP), METRICS, threads=threads)


def _statistics(world: World) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, title="Dataset, and the paper's (93 weeks)", title_justify="left")
    for column in ("", "users", "items", "mean μ^T", "mean μ^C", "mean P"):
        table.add_column(column, justify="left" if not column else "right")
    here = world.describe().to_dict("records")[0]
    rows: dict[str, dict[Any, Any]] = {f"here, {world.origin['weeks']} weeks": here, "paper": {**PAPER}}
    for name, row in rows.items():
        means = (f"{row['treated_rate']:.4f}", f"{row['control_rate']:.4f}", f"{row['propensity']:.3f}")
        table.add_row(name, f"{row['users']:,}", f"{row['items']:,}", *means)
    return table


def _comparison(results: dict[str, Measured]) -> Table:
    table = Table(
        box=rich.box.SIMPLE_HEAD, title="Purchases caused, per user and week: truth, and estimate from the log",
        caption="± is half of the 95% interval over users",
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("ranking")
    table.add_column("by")
    for metric in METRICS:
        table.add_column(metric, justify="right")
    for name, measured in results.items():
        for by, result in zip(("truth", "estimate"), measured, strict=True):
            table.add_row(name if by == "truth" else "", by, *(_cell(result[metric]) for metric in METRICS))
    return table


def _cell(metric: MetricResult) -> str:
    low, high = metric.interval()
    return f"{metric.mean:.4f} [dim]± {(high - low) / 2:.4f}[/dim]"


def _meaning(world: World, learners: list[Learner], results: dict[str, Measured]) -> str:
    """The figures in words: purchases among the ten items shown, and those the recommendation caused."""
    caused = {name: 10 * truth["CP@10"].mean for name, (truth, _) in results.items()}
    bought = {type(learner).__name__: _bought(world, learner) for learner in learners}
    return (
        f"If every user is shown the ten items that BPR ranks first, they buy {bought['BPR']:.2f} of them per week, "
        f"but only {caused['BPR']:.2f} of these purchases are caused by the recommendation. With DLCE they buy "
        f"{bought['DLCE']:.2f}, of which {caused['DLCE']:.2f} are caused by it: "
        f"{caused['DLCE'] / caused['BPR']:.1f} times the effect. The estimate from the log alone is "
        f"{10 * results['DLCE'][1]['CP@10'].mean:.2f}."
    )


def _overlap(results: dict[str, Measured]) -> str:
    """The share of each estimate of CP@10 that rests on pairs that are always, or never, recommended."""
    shares = {name: estimate["CP@10"].overlap_share or 0.0 for name, (_, estimate) in results.items()}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        "An estimate is only as good as its overlap. Share of the estimated CP@10 that rests on pairs which were "
        f"always or never recommended, so that the log has no information on their effect: {listed}."
    )


def _bought(world: World, learner: Learner) -> float:
    """Purchases per user among the ten items, if they are recommended."""
    weights = position_weights(learner.score_block(np.arange(world.n_users, dtype=np.int32)), "P@10")
    return float(10 * (weights * world.treated_rate).sum(axis=1).mean())
