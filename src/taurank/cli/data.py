"""``taurank data``: logs to try things on, with the truth beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from taurank import __version__
from taurank._choices import Recorded
from taurank.cli.arguments import read_pairs
from taurank.cli.options import READS, Group, OutFolder, Seed, Source, Threads
from taurank.cli.terminal import note, say, to_json
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.worlds.world import World

group = Group("Draw logs with known true effects.")


Propensity = Annotated[Literal["original", "personalized"], typer.Option(help="How items are recommended.")]
Users = Annotated[int, typer.Option(help="Number of users.", min=1)]
Times = Annotated[int, typer.Option(help="Number of time steps.", min=1)]


@group.command("dunnhumby")
def dunnhumby(
    out: OutFolder,
    items: Annotated[Literal["category", "product"], typer.Option(help="Item level.")] = "category",
    propensity: Propensity = "original",
    times: Times = 10,
    source: Source = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Draw a log from Dunnhumby shopping data.

    Writes log.parquet, truth.parquet and world.json. A time step is a week.
    """
    from taurank.worlds import dunnhumby

    _write_sample(dunnhumby.world(items, source), propensity, out, times, seed, threads)


@group.command("synthetic")
def synthetic(
    out: OutFolder,
    users: Users = 1000,
    items: Annotated[int, typer.Option(help="Number of items.", min=1)] = 500,
    times: Times = 10,
    propensity: Propensity = "original",
    seed: Seed = 0,
    sample_seed: Annotated[
        int | None, typer.Option(help="Seed of the draw; --seed then sets only the world.", min=0)
    ] = None,
    threads: Threads = None,
) -> None:
    """Draw a log from a synthetic world.

    Writes log.parquet, truth.parquet and world.json.
    """
    import numpy as np

    from taurank.worlds.world import World

    world = World.synthetic(users, items, np.random.SeedSequence(seed).spawn(2)[0])
    drawn = seed if sample_seed is None else sample_seed
    _write_sample(world, propensity, out, times, drawn, threads, np.random.SeedSequence(drawn).spawn(2)[1])


@group.command("shop")
def shop(
    out: OutFolder,
    users: Users = 2000,
    items: Annotated[int, typer.Option(help="Number of items.", min=120)] = 300,
    weeks: Annotated[int, typer.Option(help="Number of weeks.", min=1)] = 10,
    messy: Annotated[
        bool, typer.Option("--messy/--clean", help="Duplicates, nulls, time zones, unknown items, or none of them.")
    ] = True,
    record: Annotated[Recorded, typer.Option(help="Propensity information in impressions.")] = "propensity",
    violation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE",
            help="What estimates do not expect: delay, saturation, replacement, every_visit, intent, position or "
            "returns, such as delay=0.4. Repeatable.",
        ),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Write the tables of a made-up shop, with its truth.

    Impressions in slates of ten, visits, purchases, items, users and the shop's own ranking, as a shop exports them;
    beside them the true propensities and effects.
    """
    from taurank.worlds.shop import Shop
    from taurank.worlds.shop_tables import write_tables
    from taurank.worlds.shop_visits import Violations

    violations = read_pairs(violation)
    if unknown := [name for name in violations if name not in Violations._fields]:
        raise InputError(f"there is no violation '{unknown[0]}'; known: {', '.join(Violations._fields)}.")
    made = Shop.draw(users, items, weeks, seed, Violations(**violations))
    out.mkdir(parents=True, exist_ok=True)
    counts = write_tables(made, out, messy=messy, recorded=record, threads=threads)
    for name, rows in counts.items():
        say(f"{name + '.parquet':<24}{rows:>14,} rows")
    note(f"Wrote {made!r} to {out}; its truth is in truth.parquet and shop.json.")
    if violations:
        note(f"Today's lists cause {made.value(made.today()):.3f} purchases in a week with a visit.")


@group.command("world")
def world(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Probabilities, a row for every pair."), READS],
    out: OutFolder,
    times: Times = 10,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Draw a log from a table of probabilities.

    Its columns are idx_user, idx_item, propensity, prob_outcome_treated and prob_outcome_control. Writes log.parquet,
    truth.parquet and world.json.
    """
    from taurank.worlds.world import World

    _write_sample(World.from_table(table), "original", out, times, seed, threads)


def _write_sample(
    world: World, propensity: str, out: Path, times: int, seed: int, threads: int | None, random_state: Any = None
) -> None:
    world = world.personalized() if propensity == "personalized" else world
    sample = world.sample(times, seed if random_state is None else random_state, threads)
    if not len(sample.log):
        raise InputError("nothing was recommended or bought in this sample; draw more times.")
    out.mkdir(parents=True, exist_ok=True)
    sample.log.write(out / "log.parquet")
    sample.truth.write(out / "truth.parquet")
    record = {
        "taurank": __version__, "origin": dict(world.origin), "times": times, "seed": seed,
        "rows": len(sample.log), "effects": len(sample.truth), **world.describe().to_dict("records")[0],
    }  # fmt: skip
    from taurank.data.files import write_text

    write_text(out / "world.json", to_json(record) + "\n")
    note(f"Wrote {sample.log!r} and its true effects to {out}.")
