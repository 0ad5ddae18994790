"""The run: plans in, tables and a report out."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np

import taurank as tr
from taurank_paper import report, rows
from taurank_paper.fits import ResultCache
from taurank_paper.folder import read_record, write_text
from taurank_paper.plan import KINDS, Plan, first_repeated, load, load_preset, load_tuned
from taurank_paper.search import search
from taurank_paper.worlds import Splits

Folder = str | os.PathLike[str]


def run(
    names: str | Iterable[str] = (), preset: str = "quick", source: Folder | None = None, out: Folder = "reproduce",
    threads: int | None = None, show_progress: bool = True, seed: int | None = None,
) -> Path:  # fmt: skip
    """Run experiments, write their tables and the report into the folder ``out``, and return that folder.

    ``names`` are names of experiments or paths of TOML files; none means all of the preset. ``preset`` is "smoke"
    (small synthetic worlds), "quick", "full" (with a search over hyper-parameters) or "authors" (the authors'
    settings, all their updates). ``source`` is a folder with the original CSV files. Results are cached in
    ``out/cache``: a run that was killed continues where it stopped.
    ``seed`` replaces that of the experiments.
    """
    began = time.monotonic()
    size = load_preset(preset)
    folder = Path(out)
    before = read_record(folder)
    write_text(folder / "run.json", json.dumps(before, indent=1))  # refuses a folder that cannot be written
    found = folder / "tuned.toml"
    tuned = load_tuned(found) if size.search and found.exists() else None
    wanted = [names] if isinstance(names, str) else list(names)
    plans = [load(name, size, tuned, seed) for name in wanted or size.experiments]
    if repeated := first_repeated([plan.name.casefold() for plan in plans]):
        raise tr.InputError(f"two experiments are called '{repeated}'; their tables would overwrite each other.")
    for plan in plans:
        rows.fits_of(plan)  # refuses settings that a method does not have before anything runs
    cache = ResultCache(folder / "cache", Splits(size, source, threads), threads)
    if size.search:
        tuned = search(plans, folder, cache.splits, show_progress)
        plans = [replace(plan, tuned=tuned) for plan in plans]
    seconds = _run_all(plans, cache, folder, show_progress)
    record = _record(plans, cache, seconds, time.monotonic() - began, before)
    write_text(folder / "run.json", json.dumps(record, indent=1))
    report.write(folder)
    return folder


def _run_all(plans: list[Plan], cache: ResultCache, folder: Path, show_progress: bool) -> dict[str, float]:
    """Each experiment's fits, then its tables; returns the seconds of each."""
    needed = {plan.name: rows.fits_of(plan) for plan in plans}
    every = [fit for fits in needed.values() for fit in fits]
    keep = {fit for fit in every if fit.keep_model}  # a model is stored if any of the experiments needs it
    length = {
        fit: 1 + fit.updates // 1_000_000 for fit in every if cache.find(replace(fit, keep_model=fit in keep)) is None
    }
    total, done, start, seconds = sum(length.values()), 0, time.monotonic(), {}
    for plan in plans:
        began = time.monotonic()
        for fit in [fit for fit in needed[plan.name] if fit in length]:
            cache.result(replace(fit, keep_model=fit in keep))
            done += length.pop(fit)
            if show_progress:
                left = (time.monotonic() - start) / done * (total - done) / 60
                print(f"[{done}/{total}] {plan.name}: {fit}; about {left:.0f} min left", file=sys.stderr, flush=True)
        for name, frame in rows.frames(plan, cache).items():
            write_text(folder / f"{name}.csv", frame.to_csv(index=False))
        seconds[plan.name] = time.monotonic() - began
    return seconds


def _record(
    plans: list[Plan], cache: ResultCache, seconds: dict[str, float], total: float, before: dict[str, Any]
) -> dict[str, Any]:
    """run.json: where the figures come from; what earlier starts in this folder made is part of it."""
    preset, presets, earlier = plans[0].preset.name, before.get("presets", {}), before.get("experiments", {})
    known = {name: earlier.get(name, 0.0) for name in seconds if presets.get(name) == preset}
    spent = {name: round(value + known.get(name, 0.0), 1) for name, value in seconds.items()}
    seeds = {one.seed for plan in plans for dataset in plan.datasets for one in plan.drawn(dataset)}
    own = {plan.name: {"kind": plan.file.kind, "title": plan.file.title or plan.name} for plan in plans}
    items = list(dict.fromkeys(dataset.items for plan in plans for dataset in plan.datasets))
    origin = cache.splits.world(items[0]).origin
    return {
        "preset": preset,
        "presets": {**presets, **dict.fromkeys(seconds, preset)},
        "seed": sorted({*before.get("seed", ()), *seeds}),
        "weeks": {name: cache.splits.world(name).origin.get("weeks") for name in items},
        "source": origin.get("source", origin.get("maker")),  # in words; never a path of this machine
        "experiments": {**earlier, **spent},
        "own": {**before.get("own", {}), **{name: entry for name, entry in own.items() if name not in KINDS}},
        "seconds": round(total, 1),
        "fits": {"done": cache.done, "reused": len({f for plan in plans for f in rows.fits_of(plan)}) - cache.done},
        "versions": {
            "taurank": tr.__version__, "python": platform.python_version(),
            "numpy": np.__version__, "numba": numba.__version__,
        },
        "cpus": os.cpu_count(),
        "threads": cache.threads,
        "machine": platform.machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
