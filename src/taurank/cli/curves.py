"""``taurank curve | spend``: what showing more is worth, and what to show for a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taurank.cli import arguments, options
from taurank.cli.options import READS
from taurank.cli.terminal import note, say


def curve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model, a .npy array of scores, or a table of scores."), READS
    ],
    path: options.LogPath,
    by: Annotated[Literal["share", "k"], typer.Option(help="Best share of all pairs, or first k items.")] = "share",
    estimator: Annotated[options.Estimator | None, options.estimator_option("doubly robust")] = None,
    cap: options.Cap = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    format: Annotated[Literal["table", "csv"], typer.Option(help="Output format.")] = "table",
    html: options.Html = None,
    trust: options.Trust = None,
    threads: options.Threads = None,
) -> None:
    """Estimate what showing more is worth.

    Prints AUUC, Qini, AUTOC (RATE) and uplift@k, by share of all pairs or by k.
    """
    from taurank.evaluation.curves import effect_curve

    ranker = arguments.read_ranker(model, trust)
    gains = arguments.read_gains(arguments.read_log(path, None), None, estimator, cap, "doubly-robust")
    result = effect_curve(ranker, gains, by=by, level=level, threads=threads)
    if format == "csv":
        say(str(result.to_frame().to_csv(index=False)), end="")
    else:
        say(str(result))
    if html is not None:
        from taurank.data.files import write_text
        from taurank.report.evaluation import curve_page

        write_text(html, curve_page(result))
        note(f"Wrote {html}.")


def spend(
    model: options.ModelPath,
    path: options.LogPath,
    out: options.OutFile,
    budget: Annotated[float, typer.Option(help="What all recommendations may cost together.")],
    cost: Annotated[str, typer.Option(help="Cost of a recommendation, or a table: item_id, cost.")] = "1",
    value: Annotated[
        float | None, typer.Option(help="What a purchase is worth; leaves out what costs more than it brings.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Items per user, at most.", min=1)] = None,
    trust: options.Trust = None,
) -> None:
    """Choose what to show to whom for a budget.

    Writes a table: user_id, item_id, probability, score, cost, which evaluate measures by CP@k.
    """
    from taurank.data.log import Log
    from taurank.data.tables import to_arrow, write_batches
    from taurank.evaluation.curves import spend as choose

    try:
        costs = float(cost)
    except ValueError:
        costs = arguments.read_table(Path(cost))
    frame = choose(arguments.read_ranker(model, trust), Log.read(path), budget, cost=costs, value=value, k=k)
    table = to_arrow(frame)
    write_batches(out, table.schema, table.to_batches())
    note(f"Wrote {len(frame):,} recommendations that cost {frame['cost'].sum():,.2f} to {out}.")
