"""``taurank serve``: run the service, and everything around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taurank.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from taurank.serve.deciding import Decider
    from taurank.serve.store import Store as Database

Store = Annotated[
    str, typer.Option(envvar="TAURANK_STORE", help="A folder (SQLite), or an address postgresql://….")
]  # fmt: skip
Surface = Annotated[str, typer.Option(help="The name of the surface.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A hyper-parameter, name=value; repeatable.")]
Reason = Annotated[str, typer.Option(help="Why; it goes into the history.")]
ModelVersion = Annotated[str, typer.Argument(metavar="MODEL", help="The version of a model.")]
DEFAULT_STORE = "taurank-state"


def _group(text: str, **options: Any) -> typer.Typer:
    return typer.Typer(
        help=text, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **options
    )


group = _group("Serve randomized lists, measure their lift, learn.", invoke_without_command=True)
token = _group("Create and revoke tokens.", no_args_is_help=True)
group.add_typer(token, name="token")


@group.callback()
def run(
    context: typer.Context,
    store: Store = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Server processes.", min=1, max=64)] = 1,
    rate: Annotated[float, typer.Option(help="Requests per second and token.", min=1)] = 5000.0,
) -> None:
    """Serve randomized lists, measure their lift, learn. Without a command: run the server."""
    if context.invoked_subcommand is None:
        _need_extra()
        from taurank.serve.running import run as run_server

        _guarded(run_server, store, host, port, workers, rate, typer.echo)


@token.command("create")
def token_create(
    role: Annotated[str, typer.Argument(help="app, analyst or admin.")],
    label: Annotated[str, typer.Option(help="Whose it is.")] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Create a token and show it, once."""
    from taurank.serve.auth import create_token

    key, secret = _guarded(create_token, _store(store), role, label)
    typer.echo(f"{key}\t{secret}")


@token.command("list")
def token_list(store: Store = DEFAULT_STORE) -> None:
    """List the tokens, without the tokens themselves."""
    from taurank.serve.auth import list_tokens

    for row in _guarded(list_tokens, _store(store)):
        state = "valid" if row["revoked"] is None else f"revoked {_date(row['revoked'])}"
        typer.echo(f"{row['id']}\t{row['role']}\t{_date(row['created'])}\t{state}\t{row['label']}")


@token.command("revoke")
def token_revoke(key: Annotated[str, typer.Argument(metavar="ID")], store: Store = DEFAULT_STORE) -> None:
    """Revoke a token; servers notice within seconds."""
    from taurank.serve.auth import revoke_token

    _guarded(revoke_token, _store(store), key)
    typer.echo(f"Revoked {key}.")


@group.command("surface")
def surface_put(
    name: Annotated[str, typer.Argument(help="home, mail, …")],
    k: Annotated[int, typer.Option(help="Slots of a list.", min=1)] = 10,
    period: Annotated[str, typer.Option(help="hour, day, week or a number of seconds.")] = "day",
    floor: Annotated[float, typer.Option(help="Smallest probability of an item.")] = 0.001,
    ceiling: Annotated[float, typer.Option(help="Largest probability of an item.")] = 0.9,
    temperature: Annotated[float, typer.Option(help="Low: mostly the best items; high: anything.")] = 0.2,
    holdout: Annotated[float, typer.Option(help="Share of users without recommendations.")] = 0.05,
    outcome: Annotated[str, typer.Option(help="What the gate compares: purchases, or their value.")] = "purchases",
    cap: Annotated[float | None, typer.Option(help="The most that one bought item counts, with value.")] = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Create a surface, or change its policy."""
    database = _store(store)
    from taurank.serve.policy import Policy
    from taurank.serve.surfaces import put_surface

    policy = Policy(k, floor, ceiling, temperature)
    _guarded(put_surface, database, name, policy, period, holdout, None, None, outcome, cap)
    typer.echo(f"Surface {name}: {k} slots per {period}.")


@group.command("upload")
def upload(
    model: Annotated[str, typer.Argument(metavar="FILE", help="A model that `taurank fit` wrote.")],
    note: Annotated[str, typer.Option(help="What it is.")] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Check and store a model; shows its version."""
    from pathlib import Path

    database = _store(store)
    from taurank.serve.models import add_model

    if not Path(model).is_file():
        raise InputError(f"the file '{model}' does not exist.")
    typer.echo(_guarded(add_model, database, Path(model).read_bytes(), note, time.time())["version"])


@group.command("promote")
def promote(
    model: ModelVersion, surface: Surface = "home", reason: Reason = "by hand", store: Store = DEFAULT_STORE
) -> None:
    """Make a model the incumbent of a surface."""
    database = _store(store)
    from taurank.serve.gate import promote as apply

    _guarded(apply, database, surface, model, reason, time.time())
    typer.echo(f"{model} is the incumbent of {surface}.")


@group.command("rollback")
def rollback(surface: Surface = "home", reason: Reason = "by hand", store: Store = DEFAULT_STORE) -> None:
    """Return to the incumbent before."""
    database = _store(store)
    from taurank.serve.gate import roll_back

    typer.echo(f"{_guarded(roll_back, database, surface, reason, time.time())} is the incumbent of {surface}.")


@group.command("switch")
def switch(
    state: Annotated[str, typer.Argument(metavar="on|off", help="Whether recommendations are shown.")],
    surface: Surface = "home",
    reason: Reason = "by hand",
    store: Store = DEFAULT_STORE,
) -> None:
    """Turn the recommendations of a surface off or on."""
    database = _store(store)
    from taurank.serve.gate import switch as apply

    if state not in ("on", "off"):
        raise InputError(f"the switch is on or off, not '{state}'.")
    _guarded(apply, database, surface, state == "on", reason, time.time())
    typer.echo(f"{surface} is {state}.")


@group.command("export")
def export(
    out: Annotated[str, typer.Option(help="Folder for log.parquet and visits.parquet.")],
    surface: Surface = "home",
    last: Annotated[int | None, typer.Option(help="Only the last so many periods.", min=1)] = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Write the settled periods as a log that `taurank fit` reads, and the visits beside it."""
    decider = _decider(store)
    from taurank.serve.export import export as make

    decider.surfaces.refresh()
    made = _guarded(make, decider, decider.surfaces.get(surface), last)
    log, visits = made.write(out)
    typer.echo(f"Wrote {made.log!r} to {log} and {made.visits.num_rows:,} visits to {visits}.")


@group.command("retrain")
def retrain(
    learner: Annotated[str, typer.Argument(metavar="LEARNER", help="dlce, countingbayes, …")] = "dlce",
    settings: Settings = None,
    surface: Surface = "home",
    share: Annotated[float, typer.Option(help="The candidate's share of users.", min=0.01, max=0.99)] = 0.2,
    last: Annotated[int | None, typer.Option(help="Only the last so many periods.", min=1)] = None,
    update: Annotated[bool, typer.Option("--update", help="Update the incumbent if it is such a learner.")] = False,
    every: Annotated[float | None, typer.Option(help="Repeat after this many hours.", min=0.01)] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same bits.", min=0)] = 0,
    store: Store = DEFAULT_STORE,
) -> None:
    """Learn from the settled periods and register the model as the candidate of a surface."""
    from taurank.cli.arguments import read_pairs

    decider = _decider(store)
    from taurank.serve.retraining import Plan
    from taurank.serve.retraining import retrain as apply

    plan = Plan(learner, {"random_state": seed, **read_pairs(settings)}, share, last, update)
    while True:
        result = _guarded(apply, decider, surface, plan)
        typer.echo(f"{result.version or 'not retrained'}: {result.words}")
        if every is None:
            return
        time.sleep(every * 3600)


@group.command("keep")
def keep(store: Store = DEFAULT_STORE) -> None:
    """Settle ended periods and run the gate, once; the server does so by itself."""
    decider = _decider(store)
    from taurank.serve.keeping import keep_once

    for name, words in _guarded(keep_once, decider).items():
        typer.echo(f"{name}: {words}")


@group.command("settle")
def settle(
    date: Annotated[str, typer.Argument(metavar="TIME", help="A time in the period, for example 2026-11-16.")],
    surface: Surface = "home",
    store: Store = DEFAULT_STORE,
) -> None:
    """Settle a period again, for events that arrived too late."""
    from datetime import UTC, datetime

    decider = _decider(store)
    from taurank.serve.settling import settle_again

    try:
        when = datetime.fromisoformat(date)
    except ValueError as error:
        raise InputError(f"'{date}' is not a date such as 2026-11-16.") from error
    chosen = decider.surfaces.get(surface)
    number = chosen.period.number((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    _guarded(settle_again, decider, chosen, number, time.time())
    typer.echo(f"Settled {chosen.period.name(number)} of {surface} again.")


@group.command("simulate")
def simulate(
    users: Annotated[int, typer.Option(help="Users of the simulated world.", min=200)] = 1500,
    periods: Annotated[int, typer.Option(help="Days to simulate.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Same seed, same run.", min=0)] = 0,
    port: Annotated[int, typer.Option(help="Port of the server; 0 takes a free one.", min=0, max=65535)] = 0,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the dashboard open at the end.")] = False,
) -> None:
    """Let a world with known effects shop at a real server, and compare what it says with the truth.

    The learner was chosen by the truth of this world: it shows that the loop works, not which learner is best.
    """
    _need_extra()
    import tempfile

    from taurank.serve.demo import HEADING, line
    from taurank.serve.demo import simulate as apply
    from taurank.serve.simulate import Scenario

    def ready(address: str) -> None:
        typer.echo(f"dashboard: {address}\n")
        typer.echo(HEADING)

    with tempfile.TemporaryDirectory() as folder:
        try:
            reports = apply(
                folder, Scenario(users, periods=periods, seed=seed), port, lambda r: typer.echo(line(r)), ready, stay
            )
        except KeyboardInterrupt:
            return
    covered = sum(report.covered for report in reports)
    typer.echo(
        f"\nTrue lift per visit: {reports[0].truth:.3f} on the first day, {reports[-1].truth:.3f} on the last."
    )
    typer.echo(f"The interval covered the truth on {covered} of {len(reports)} days.")


def _store(address: str) -> Database:
    _need_extra()
    from taurank.serve.store import Store as Opened

    opened: Database = _guarded(Opened, address)
    return opened


def _decider(address: str) -> Decider:
    store = _store(address)
    from taurank.serve.deciding import Decider as Made
    from taurank.serve.service import secret_for

    return Made(store, secret_for(address), time.time)


def _guarded(function: Any, *arguments: Any) -> Any:
    """A database that does not answer is one sentence, too."""
    from taurank.serve.store import Unavailable

    try:
        return function(*arguments)
    except Unavailable as error:
        raise InputError(f"the database does not answer: {error}.") from error


def _need_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the service needs its extra: pip install 'taurank[serve]'.") from error


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
