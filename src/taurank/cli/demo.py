"""The demonstration: what ``make demo`` shows.

Ten weeks of shopping data with mailers as recommendations; three rankings learned from them; what each would
cause in ten other weeks, by the truth (which only a semi-synthetic world has) and by the estimate a real shop
can make from its log.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import rich.box
from rich.console import Console
from rich.table import Table

from taurank.errors import OverlapWarning
from taurank.estimation import gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.formulas import position_weights
from taurank.evaluation.results import Metric, Result
from taurank.learners import BPR, DLCE, Learner, Popular
from taurank.worlds import dunnhumby
from taurank.worlds.world import World

# Sato et al. 2020, table "Statistics of datasets": 93 weeks of the original files.
PAPER = {"users": 2309, "items": 1372, "treated_rate": 0.0145, "control_rate": 0.0101, "propensity": 0.153}

CAP = 0.01
METRICS = ("CP@10", "CP@100", "CDCG")


def run(seed: int = 0, threads: int | None = None) -> None:
    """Build the Dunnhumby category world, fit Popular, BPR and DLCE, and show what they would cause."""
    console = Console()
    began = time.monotonic()
    with console.status("building the Dunnhumby category world (kept for next time)"):
        world = dunnhumby.world("category")
    console.print(_statistics(world))
    train, validation, test = (world.sample(times, seed + n) for n, times in enumerate((10, 1, 10)))
    options: dict[str, Any] = {"factors": 200, "random_state": seed, "threads": threads}
    learners: list[Learner] = [
        Popular().fit(train.log),
        BPR(**options, learning_rate=0.01, regularization=0.01, epochs=50).fit(
            train.log, gains.outcome(validation.log), "DCG"
        ),
        DLCE(**options, learning_rate=0.003, regularization=0.03, cap=CAP, epochs=300).fit(
            train.log, gains.capped_ips(validation.log, CAP), "CDCG", patience=None
        ),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # said below the table
        found = {
            type(learner).__name__: (
                evaluate(learner, test.truth, METRICS, threads=threads),
                evaluate(learner, gains.capped_ips(test.log, CAP), METRICS, threads=threads),
            )
            for learner in learners
        }
    console.print(_comparison(found))
    console.print(_meaning(world, learners, found))
    console.print(_overlap(found))
    console.print(f"[dim]{time.monotonic() - began:.0f} seconds[/dim]")


def _statistics(world: World) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, title="The data, and the paper's (it had 93 weeks)", title_justify="left")
    for column in ("", "users", "items", "mean μ^T", "mean μ^C", "mean P"):
        table.add_column(column, justify="left" if not column else "right")
    here = world.describe().to_dict("records")[0]
    rows: dict[str, dict[Any, Any]] = {f"here, {world.origin['weeks']} weeks": here, "paper": {**PAPER}}
    for name, row in rows.items():
        means = (f"{row['treated_rate']:.4f}", f"{row['control_rate']:.4f}", f"{row['propensity']:.3f}")
        table.add_row(name, f"{row['users']:,}", f"{row['items']:,}", *means)
    return table


def _comparison(found: dict[str, tuple[Result, Result]]) -> Table:
    table = Table(
        box=rich.box.SIMPLE_HEAD, title="Purchases caused, per user and week: truth, and estimate from the log",
        caption="± is half of the 95 % interval over users",
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("ranking")
    table.add_column("by")
    for metric in METRICS:
        table.add_column(metric, justify="right")
    for name, results in found.items():
        for by, result in zip(("truth", "estimate"), results, strict=True):
            table.add_row(name if by == "truth" else "", by, *(_cell(result[metric]) for metric in METRICS))
    return table


def _cell(metric: Metric) -> str:
    low, high = metric.interval()
    return f"{metric.mean:.4f} [dim]± {(high - low) / 2:.4f}[/dim]"


def _meaning(world: World, learners: list[Learner], found: dict[str, tuple[Result, Result]]) -> str:
    """What the figures say: purchases among the ten items shown, and how many of them showing caused."""
    caused = {name: 10 * truth["CP@10"].mean for name, (truth, _) in found.items()}
    bought = {type(learner).__name__: _bought(world, learner) for learner in learners}
    return (
        f"Show every user the ten items that BPR ranks first, and they buy {bought['BPR']:.2f} of them a week; but "
        f"only {caused['BPR']:.2f} of these purchases happen because the items were shown. Of DLCE's ten items they "
        f"buy {bought['DLCE']:.2f}, and {caused['DLCE']:.2f} because of it: "
        f"{caused['DLCE'] / caused['BPR']:.1f} times the effect. From the log alone one would have estimated "
        f"{10 * found['DLCE'][1]['CP@10'].mean:.2f}."
    )


def _overlap(found: dict[str, tuple[Result, Result]]) -> str:
    """How much of each estimate of CP@10 rests on pairs that are always, or never, recommended."""
    shares = {name: estimate["CP@10"].overlap_share or 0.0 for name, (_, estimate) in found.items()}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        "An estimate is as good as its overlap. The share of CP@10 that rests on pairs which were always or never "
        f"recommended, where no log can tell the effect: {listed}."
    )


def _bought(world: World, learner: Learner) -> float:
    """Purchases per user among the ten items, if they are shown."""
    shown = position_weights(learner.score_block(np.arange(world.n_users, dtype=np.int32)), "P@10")
    return float(10 * (shown * world.treated_rate).sum(axis=1).mean())
