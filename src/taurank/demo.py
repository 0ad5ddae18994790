"""The demonstration: what ``make demo`` shows."""

from __future__ import annotations

from typing import Literal

import rich.box
from rich.console import Console
from rich.table import Table

from taurank import dunnhumby

# Sato et al. 2020, table "Statistics of datasets": 93 weeks of the original files.
PAPER: dict[Literal["category", "product"], tuple[float, ...]] = {
    "category": (2309, 1372, 0.0145, 0.0101, 0.153),
    "product": (2290, 11331, 0.0027, 0.0010, 0.088),
}


def run() -> None:
    """Build both Dunnhumby worlds and print their statistics beside the paper's."""
    console = Console()
    table = Table(
        "items", "data", "users", "items", "mean μ^T", "mean μ^C", "mean P", box=rich.box.SIMPLE_HEAD
    )
    for items, paper in PAPER.items():
        with console.status(f"building the {items} world"):
            world = dunnhumby.world(items)
        _add(table, items, f"{world.origin['weeks']} weeks, here", tuple(world.describe().iloc[0]))
        _add(table, items, "93 weeks, paper", paper)
    console.print(table)
    console.print(
        "The packaged data hold one year, the paper had nearly two, so counts and means differ a little.\n"
        "The means of μ^T and μ^C are the purchase probabilities with and without a mailer: their gap is\n"
        "what recommending causes on average, and ranking by it is what taurank is for."
    )


def _add(table: Table, items: str, data: str, row: tuple[float, ...]) -> None:
    users, n_items, treated, control, propensity = row
    table.add_row(
        items, data, f"{users:,.0f}", f"{n_items:,.0f}",
        f"{treated:.4f}", f"{control:.4f}", f"{propensity:.3f}",
    )  # fmt: skip
