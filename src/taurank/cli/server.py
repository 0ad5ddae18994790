"""``taurank serve`` starts the service; ``taurank server …`` administers it.

All commands of ``taurank server`` obey one option ``--store`` of the group. Only ``init`` creates a store.
"""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from taurank.cli.options import READS, Group, OutFolder, Seed, Settings
from taurank.cli.terminal import say, to_json

if TYPE_CHECKING:
    from taurank.serve.decisions import Decider
    from taurank.serve.store import Store

StoreAddress = Annotated[
    str,
    typer.Option("--store", envvar="TAURANK_STORE", metavar="STORE",
                 help="A folder (SQLite), or an address postgresql://user@host/name."),
]  # fmt: skip
Surface = Annotated[str, typer.Option("--surface", metavar="NAME", help="Name of the surface.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; shown in the history.")]
Version = Annotated[str, typer.Argument(metavar="MODEL", help="Version of a model.")]
Last = Annotated[int | None, typer.Option("--last", help="Only the last N periods.", min=1)]
Share = Annotated[
    float | None, typer.Option(metavar="SHARE", help="The challenger's share of users.", min=0.01, max=0.99)
]
DEFAULT_STORE = "taurank-state"

group = Group("Administer the service: surfaces, models, tokens, jobs.")
surface_group = Group("Create, change and switch surfaces.")
model_group = Group("Upload models, and choose which one serves.")
token_group = Group("Create and revoke access tokens.")
item_group = Group("Say which items can be shown.")
group.add_typer(surface_group, name="surface")
group.add_typer(model_group, name="model")
group.add_typer(token_group, name="token")
group.add_typer(item_group, name="item")


def serve(
    store: StoreAddress = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen on.", min=1, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Server processes.", min=1, max=64)] = 1,
    rate: Annotated[float, typer.Option(help="Requests per second and token.", min=1)] = 5000.0,
    webhook: Annotated[
        str,
        typer.Option(metavar="URL", envvar="TAURANK_WEBHOOK", help="Post promotions, demotions and alerts there."),
    ] = "",
    log_requests: Annotated[bool, typer.Option("--log-requests", help="A line of JSON for every request.")] = False,
) -> None:
    """Start the service. `taurank server init` creates its store."""
    from taurank.serve.server import run

    run(store, host, port, workers, rate, webhook, log_requests, say)


@group.callback()
def choose_store(context: typer.Context, store: StoreAddress = DEFAULT_STORE) -> None:
    context.obj = store


@group.command("init")
def init(context: typer.Context, surface: Surface = "home") -> None:
    """Create the store, a surface, and an admin token, shown once."""
    from taurank.serve.server import init as create
    from taurank.serve.store import show_address

    token = create(context.obj, surface)
    say(f"Created the store {show_address(context.obj)} with the surface {surface}.")
    say(f"admin token, shown once: {token}")


@group.command("migrate")
def migrate(context: typer.Context) -> None:
    """Bring the store of an earlier version up to date.

    Stop all servers and make a backup first.
    """
    from taurank.serve.migrations import migrate as apply
    from taurank.serve.tables import SCHEMA_VERSION

    say(f"The store had schema {apply(context.obj)}, and has schema {SCHEMA_VERSION}.")


@group.command("jobs")
def jobs(context: typer.Context) -> None:
    """Settle periods and judge challengers now.

    The server does so by itself every few seconds.
    """
    from taurank.serve.gate import run_jobs

    for name, text in run_jobs(_decider(context)).items():
        say(f"{name}: {text}")


@group.command("settle")
def settle(
    context: typer.Context,
    when: Annotated[datetime, typer.Argument(metavar="TIME", help="A time in the period, such as 2026-11-16.")],
    surface: Surface = "home",
) -> None:
    """Settle a period again, to count outcomes that arrived late."""
    from taurank.serve.settlement import settle_again

    seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    say(f"Settled {settle_again(_decider(context), surface, seconds, time.time())} of {surface} again.")


@group.command("export")
def export(
    context: typer.Context,
    out: OutFolder,
    surface: Surface = "home",
    last: Last = None,
) -> None:
    """Write the settled periods as a log, which `taurank fit` reads."""
    from taurank.serve.settlement import export as make

    decider = _decider(context)
    log, path = make(decider, decider.surfaces.get(surface), last), out / "log.parquet"
    out.mkdir(parents=True, exist_ok=True)
    log.write(path)
    say(f"Wrote {log!r} to {path}.")


@group.command("import")
def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A CSV or Parquet file, or a query in SQL.")],
    database: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to run the query: sqlite:///shop.db, postgresql://…")
    ] = None,
) -> None:
    """Import outcomes from a file or a database.

    Columns: event_id, user_id, item_id, time, and optionally value. Settled periods that get new outcomes are settled
    again; what is known already is not counted twice.
    """
    from taurank.serve.imports import import_outcomes, query_rows, rows_of

    needed = ("event_id", "user_id", "item_id", "time")
    rows = rows_of(source, needed) if database is None else query_rows(database, source)
    new, known, again = import_outcomes(_decider(context), rows)
    say(f"{new:,} new outcomes, {known:,} known already." + (f" Settled again: {', '.join(again)}." if again else ""))


@item_group.command("upload")
def item_upload(
    context: typer.Context,
    table: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet."), READS],
) -> None:
    """Add items to the table, or change them.

    Columns: item_id, and those of available, until and category that are to change.
    """
    from taurank.serve.imports import parsed, rows_of
    from taurank.serve.items import put_items
    from taurank.serve.schemas import Item

    store = _store(context)
    changed = sum(put_items(store, chunk) for chunk in parsed(rows_of(table, ["item_id"]), Item))
    say(f"Changed {changed:,} items.")


@item_group.command("list")
def item_list(context: typer.Context) -> None:
    """List the item table."""
    from taurank.serve.items import list_items

    for item, (available, until, category) in sorted(list_items(_store(context)).items()):
        ends = "" if until is None else f"until {_date(until)}"
        say(f"{item}\t{'available' if available else 'sold out'}\t{ends}\t{category or ''}")


@group.command("features")
def features(
    context: typer.Context,
    about: Annotated[str, typer.Argument(metavar="users|items", help="Whose features they are.")],
    table: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet."), READS],
) -> None:
    """Store features for `retrain`.

    Columns: user_id or item_id, and features. Users and items without any visit then get scores, too.
    """
    from taurank._checks import check_choice
    from taurank.serve.imports import FEATURES, put_features

    check_choice("the first argument", about, tuple(FEATURES))
    say(f"Stored features of {put_features(_store(context), about, table):,} {about}.")


@group.command("retrain")
def retrain(
    context: typer.Context,
    learner: Annotated[str, typer.Argument(metavar="LEARNER", help="empiricalbayes, dlce, …")] = "empiricalbayes",
    settings: Settings = None,
    surface: Surface = "home",
    share: Share = None,
    last: Last = None,
    every: Annotated[
        float | None, typer.Option(metavar="HOURS", help="Repeat after this many hours.", min=0.01)
    ] = None,
    seed: Seed = 0,
) -> None:
    """Fit a model to the settled periods as the challenger."""
    from taurank.cli.arguments import read_pairs
    from taurank.serve.retrain import RetrainConfig
    from taurank.serve.retrain import retrain as apply
    from taurank.serve.surfaces import DEFAULT_SHARE

    hyper_parameters = {"random_state": seed, **read_pairs(settings)}
    config = RetrainConfig(learner, hyper_parameters, DEFAULT_SHARE if share is None else share, last)
    while True:
        decider = _decider(context)
        result = apply(decider, surface, config)
        decider.store.close()  # no connection is held for hours
        say(f"{result.version or 'not retrained'}: {result.reason}")
        if every is None:
            return
        time.sleep(every * 3600)


@group.command("decision")
def decision(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="ID", help="The decision_id of an answer.")],
    item: Annotated[list[str] | None, typer.Option(metavar="ITEM", help="Show its propensity. Repeatable.")] = None,
) -> None:
    """Show a stored decision, and propensities of items."""
    say(to_json(_decider(context).describe(key, item or [])))


@group.command("history")
def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(help="How many of the latest events.", min=1)] = 20,
) -> None:
    """List what was changed, promoted and demoted, latest first."""
    from taurank.serve.surfaces import read_history

    for row in read_history(_store(context), limit):
        say(f"{_date(row['time'])}\t{row['surface']}\t{row['event']}\t{row['model'] or '–'}\t{row['reason']}")


@surface_group.command("set")
def surface_set(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="home, mail, …")],
    k: Annotated[int | None, typer.Option("--k", "-k", help="Slots of a list.", min=1)] = None,
    period: Annotated[str | None, typer.Option(help="hour, day, week or a number of seconds.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Where days and weeks begin, such as Europe/Berlin.")] = None,
    floor: Annotated[float | None, typer.Option(help="Smallest probability of an item.")] = None,
    ceiling: Annotated[float | None, typer.Option(help="Largest probability of an item.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Low: mostly the best items; high: anything.")] = None,
    block: Annotated[
        list[str] | None, typer.Option(metavar="ITEM", help="Never show it. Repeatable; '' ends it.")
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="ITEM", help="Show it first, unmeasured. Repeatable.")
    ] = None,
    per_category: Annotated[
        int | None, typer.Option(metavar="N", help="At most N items of a category; 0: any.")
    ] = None,
    max_shown: Annotated[
        int | None, typer.Option(metavar="N", help="Show an item at most N times (0: any) ...")
    ] = None,
    within: Annotated[int | None, typer.Option(metavar="P", help="... in P periods.")] = None,
    holdout: Annotated[float | None, typer.Option(help="Share of users without recommendations.")] = None,
    holdout_model: Annotated[str | None, typer.Option(help="Model for the hold-out instead of nothing.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Compare models by purchases, or by their value.")] = None,
    max_value: Annotated[float | None, typer.Option(help="Maximum value counted per purchased item.")] = None,
    retention: Annotated[float | None, typer.Option(metavar="DAYS", help="Delete older settled decisions.")] = None,
) -> None:
    """Create a surface, or change the settings that are named."""
    from taurank.serve.surfaces import put_surface

    policy = {
        "k": k, "floor": floor, "ceiling": ceiling, "temperature": temperature,
        "blocked": None if block is None else [item for item in block if item],
        "pins": None if pin is None else [item for item in pin if item],
        "per_category": per_category, "max_shown": max_shown, "within": within,
    }  # fmt: skip
    given = {
        "period": period, "timezone": timezone, "holdout": holdout, "holdout_model": holdout_model,
        "outcome": outcome, "max_value": max_value, "retention": retention,
        "policy": {key: value for key, value in policy.items() if value is not None},
    }  # fmt: skip
    decider = _decider(context)
    ended = put_surface(decider.store, name, {key: value for key, value in given.items() if value is not None})
    decider.surfaces.refresh()
    made = decider.surfaces.get(name)
    say(f"Surface {name}: {made.policy.k} slots per {made.period}." + (f" Note: {ended}." if ended else ""))


@surface_group.command("list")
def surface_list(context: typer.Context) -> None:
    """List the surfaces with their settings."""
    say(to_json([surface.model_dump() for surface in _decider(context).surfaces.all()]))


@surface_group.command("switch")
def switch(
    context: typer.Context,
    state: Annotated[
        Literal["on", "off"], typer.Argument(metavar="on|off", help="Whether recommendations are shown.")
    ],
    surface: Surface = "home",
    reason: Reason = "by hand",
) -> None:
    """Turn the recommendations of a surface off or on."""
    from taurank.serve.surfaces import switch as apply

    apply(_store(context), surface, state == "on", reason, time.time())
    say(f"{surface} is {state}.")


@surface_group.command("delete")
def surface_delete(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="A surface that is off.")]
) -> None:
    """Delete a surface with its decisions and figures."""
    from taurank.serve.retention import delete_surface

    delete_surface(_store(context), name, time.time())
    say(f"Deleted the surface {name}.")


@model_group.command("delete")
def model_delete(context: typer.Context, model: Version) -> None:
    """Delete a model that nothing uses."""
    from taurank.serve.retention import delete_model

    delete_model(_store(context), model, time.time())
    say(f"Deleted the model {model}.")


@group.command("forget")
def forget(
    context: typer.Context, user: Annotated[str, typer.Argument(metavar="USER", help="Id of the user.")]
) -> None:
    """Delete everything that is stored about a user."""
    from taurank.serve.retention import forget_user

    gone = forget_user(_store(context), user, time.time())
    say(f"Deleted {', '.join(f'{number:,} {name}' for name, number in gone.items())}.")


@model_group.command("upload")
def upload(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `taurank fit` wrote."), READS],
    note: Annotated[str, typer.Option(metavar="TEXT", help="Free-text description.")] = "",
) -> None:
    """Check and store a model; shows its version."""
    from taurank.serve.models import add_model, model_bytes

    say(add_model(_store(context), model_bytes(model), note, time.time())["version"])


@model_group.command("list")
def model_list(context: typer.Context) -> None:
    """List the stored models, latest first."""
    from taurank.serve.models import list_models

    for row in list_models(_store(context)):
        size = f"{row['users']:,} users × {row['items']:,} items"
        say(f"{row['version']}\t{row['learner']}\t{size}\t{_date(row['created'])}\t{row['note']}")


@model_group.command("promote")
def promote(context: typer.Context, model: Version, surface: Surface = "home", reason: Reason = "by hand") -> None:
    """Make a model the incumbent of a surface."""
    from taurank.serve.surfaces import promote as apply

    apply(_store(context), surface, model, reason, time.time())
    say(f"{model} is the incumbent of {surface}.")


@model_group.command("challenge")
def challenge(
    context: typer.Context,
    model: Version,
    surface: Surface = "home",
    share: Share = None,
    reason: Reason = "by hand",
) -> None:
    """Try a model on a share of the users."""
    from taurank.serve.surfaces import DEFAULT_SHARE, start_challenger

    start_challenger(_store(context), surface, model, DEFAULT_SHARE if share is None else share, reason, time.time())
    say(f"{model} is the challenger of {surface}.")


@model_group.command("demote")
def demote(context: typer.Context, surface: Surface = "home", reason: Reason = "by hand") -> None:
    """End the trial of the challenger."""
    from taurank.serve.surfaces import demote as apply

    apply(_store(context), surface, reason, time.time())
    say(f"{surface} has no challenger now.")


@model_group.command("rollback")
def rollback(context: typer.Context, surface: Surface = "home", reason: Reason = "by hand") -> None:
    """Restore the previous incumbent."""
    from taurank.serve.surfaces import roll_back

    say(f"{roll_back(_store(context), surface, reason, time.time())} is the incumbent of {surface}.")


@token_group.command("create")
def token_create(
    context: typer.Context,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="app, analyst or admin.")],
    label: Annotated[str, typer.Option(metavar="TEXT", help="Owner of the token.")] = "",
) -> None:
    """Create a token and show it, once."""
    from taurank.serve.security import create_token

    key, secret = create_token(_store(context), role, label)
    say(f"{key}\t{secret}")


@token_group.command("list")
def token_list(context: typer.Context) -> None:
    """List the tokens, without the tokens themselves."""
    from taurank.serve.security import list_tokens

    for row in list_tokens(_store(context)):
        state = "valid" if row["revoked"] is None else f"revoked {_date(row['revoked'])}"
        say(f"{row['id']}\t{row['role']}\t{_date(row['created'])}\t{state}\t{row['label']}")


@token_group.command("revoke")
def token_revoke(
    context: typer.Context, key: Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")]
) -> None:
    """Revoke a token; servers notice within seconds."""
    from taurank.serve.security import revoke_token

    revoke_token(_store(context), key)
    say(f"Revoked {key}.")


def _store(context: typer.Context) -> Store:
    """The store of the group's option, open until the command ends."""
    from taurank.serve.store import Store

    return context.with_resource(closing(Store(context.obj)))


def _decider(context: typer.Context) -> Decider:
    from taurank.serve.decisions import Decider
    from taurank.serve.store import secret_for

    return Decider(_store(context), secret_for(context.obj), time.time)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
