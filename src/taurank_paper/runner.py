"""The run: plans in, tables and a report out."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np

import taurank as tr
from taurank.errors import InputError
from taurank_paper import rows
from taurank_paper.files import write_text
from taurank_paper.fits import FitSpec, ResultCache
from taurank_paper.plan import ITEMS, KINDS, Plan, load, load_preset, load_tuned
from taurank_paper.report import page  # refuses a run whose report could not be written, before any fit
from taurank_paper.search import search
from taurank_paper.splits import Splits

Folder = str | os.PathLike[str]


def run(
    names: str | Iterable[str] = (),
    preset: str = "quick",
    source: Folder | None = None,
    out: Folder = "reproduce",
    threads: int | None = None,
    show_progress: bool = True,
    items: str | None = None,
    seed: int | None = None,
) -> Path:
    """Run experiments, write their tables and the report into the folder ``out``, and return that folder.

    ``names`` are names of experiments or paths of TOML files; none means all of the preset. ``preset`` is "smoke"
    (small synthetic worlds), "quick", "full" (with a search over hyper-parameters) or "authors" (the authors'
    settings, all their updates). ``source`` is a folder with the original CSV files. Results are cached in
    ``out/cache``: a run that was killed continues where it stopped.
    ``items`` "category" or "product" runs that half alone; a run without it reuses both halves from the same folder.
    ``seed`` replaces that of the experiments.
    """
    began = time.monotonic()
    size = load_preset(preset)
    folder = _writable(Path(out))
    own = folder / "tuned.toml"
    tuned = load_tuned(size, own if size.search and own.exists() else None)
    wanted = [names] if isinstance(names, str) else list(names)
    plans = _on_items([load(name, size, tuned) for name in wanted or size.experiments], items)
    plans = [plan if seed is None else plan.with_seed(seed) for plan in plans]
    _check_names(plans)
    cache = ResultCache(folder / "cache", Splits(size, source, threads), threads)
    if size.search:
        tuned = search(plans, folder, cache.splits, show_progress)
        plans = [replace(plan, tuned=tuned) for plan in plans]
    seconds = _run_all(plans, cache, folder, show_progress)
    _write_record(folder, plans, cache, seconds, time.monotonic() - began)
    page.write(folder)
    return folder


def _run_all(plans: list[Plan], cache: ResultCache, folder: Path, show_progress: bool) -> dict[str, float]:
    """Each experiment's fits, then its tables; returns the seconds of each."""
    needed = {plan.name: rows.fits_of(plan) for plan in plans}
    total = sum(_length(fit) for fit in _missing([fit for fits in needed.values() for fit in fits], cache))
    done, start, seconds = 0, time.monotonic(), {}

    def say(text: str) -> None:
        if show_progress:
            print(text, file=sys.stderr, flush=True)

    for plan in plans:
        began = time.monotonic()
        missing = _missing(needed[plan.name], cache)
        say(f"{plan.name}: {plan.title}; {len(missing)} of {len(needed[plan.name])} fits to make")
        for fit in missing:
            before = time.monotonic()
            cache.result(fit)
            done, now = done + _length(fit), time.monotonic()
            left = (now - start) / done * (total - done) / 60
            say(f"[{done}/{total}] {plan.name}: {fit}, {now - before:.1f} s; about {left:.0f} min left")
        for name, frame in rows.frames(plan, cache).items():
            write_text(folder / f"{name}.csv", frame.to_csv(index=False))
        seconds[plan.name] = time.monotonic() - began
    return seconds


def _missing(fits: list[FitSpec], cache: ResultCache) -> list[FitSpec]:
    """The fits not on disk yet, each once; a model is stored if any of the experiments needs it."""
    keep = {fit for fit in fits if fit.keep_model}
    distinct = [replace(fit, keep_model=fit in keep) for fit in dict.fromkeys(fits)]
    return [fit for fit in distinct if cache.find(fit) is None]


def _length(fit: FitSpec) -> int:
    """Of a fit, in million updates, so that the time left is of use."""
    return 1 + fit.updates // 1_000_000


def _on_items(plans: list[Plan], items: str | None) -> list[Plan]:
    """The experiments on these items alone; those without any such dataset are left out."""
    if items is None:
        return plans
    if items not in ITEMS:
        raise InputError(f"there are no items '{items}'; known: {', '.join(ITEMS)}.")
    parts = [part for plan in plans if (part := plan.on(items)).datasets]
    if not parts:
        raise InputError(f"none of these experiments has the items '{items}'.")
    return parts


def _writable(folder: Path) -> Path:
    """The folder, made if need be; refused before any fit if nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"taurank")
    except OSError as error:
        raise InputError(f"nothing can be written to the folder '{folder}': {error.strerror}.") from error
    return folder


def _check_names(plans: list[Plan]) -> None:
    names = [plan.name.casefold() for plan in plans]
    for plan in plans:
        if names.count(plan.name.casefold()) > 1:
            raise InputError(f"two experiments are called '{plan.name}'; their tables would overwrite each other.")


# ---- run.json ------------------------------------------------------------------------------------


def _write_record(
    folder: Path, plans: list[Plan], cache: ResultCache, seconds: Mapping[str, float], total: float
) -> None:
    """run.json: where the figures come from; earlier starts in this folder are part of it."""
    preset, before = plans[0].preset.name, _before(folder)
    presets = before.get("presets", {})
    earlier = before.get("experiments", {})
    spent = {name: value + (presets.get(name) == preset) * earlier.get(name, 0.0) for name, value in seconds.items()}
    seeds = {one.seed for plan in plans for dataset in plan.datasets for one in plan.drawn(dataset)}
    own = {plan.name: {"kind": plan.kind, "title": plan.title} for plan in plans if plan.name not in KINDS}
    items = list(dict.fromkeys(dataset.items for plan in plans for dataset in plan.datasets))
    origin = cache.splits.world(items[0]).origin
    record: dict[str, Any] = {
        "preset": preset,
        "presets": {**presets, **dict.fromkeys(seconds, preset)},
        "seed": sorted({*before.get("seed", ()), *seeds}),
        "weeks": {name: cache.splits.world(name).origin.get("weeks") for name in items},
        "source": origin.get("source", origin.get("maker")),  # in words; never a path of this machine
        "experiments": {**earlier, **{name: round(value, 1) for name, value in spent.items()}},
        "own": {**before.get("own", {}), **own},
        "seconds": round(total, 1),
        "fits": {
            "done": cache.done,
            "reused": len({fit for plan in plans for fit in rows.fits_of(plan)}) - cache.done,
        },
        "versions": {
            "taurank": tr.__version__, "python": platform.python_version(),
            "numpy": np.__version__, "numba": numba.__version__,
        },
        "cpus": os.cpu_count(),
        "threads": cache.threads,
        "machine": platform.machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "earlier_starts": before.get("starts", {}),
    }  # fmt: skip
    write_text(folder / "run.json", json.dumps(record, indent=1))


def _before(folder: Path) -> dict[str, Any]:
    """What run.json says of earlier starts: a run may be made in parts, each with a preset of its own."""
    try:
        old = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        this = {old["date"]: {"seconds": old["seconds"], "fits": old["fits"]["done"]}}
        return {
            "experiments": {name: float(seconds) for name, seconds in old["experiments"].items()},
            "presets": dict(old["presets"]), "seed": [int(seed) for seed in old["seed"]],
            "own": dict(old["own"]), "starts": {**old["earlier_starts"], **this},
        }  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # no record, or an unreadable one: it is written again
