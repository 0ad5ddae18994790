"""The run: plans in, tables and a report out."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

import taurank
from taurank._progress import Progress
from taurank._validation import check_integer
from taurank.data.files import atomic_path
from taurank.errors import InputError
from taurank_paper.plan.names import ITEMS, KINDS
from taurank_paper.plan.plans import Plan
from taurank_paper.plan.reading import load, load_preset, load_tuned
from taurank_paper.runs import search, tables
from taurank_paper.runs.cache import ResultCache, make_folder
from taurank_paper.runs.fits import FitSpec
from taurank_paper.runs.splits import Splits

Folder = str | os.PathLike[str]


def run(
    names: str | Iterable[str] = (),
    preset: str = "quick",
    source: Folder | None = None,
    out: Folder = "reproduce",
    threads: int | None = None,
    show_progress: bool | None = None,
    items: str | None = None,
    seed: int | None = None,
    latex: bool = False,
) -> Path:
    """Run experiments, write their tables and the report into the folder ``out``, and return that folder.

    ``names`` are names of experiments or paths of TOML files; none means all of the preset. ``preset`` is "smoke"
    (small synthetic worlds), "quick", "full" (with a search over hyper-parameters) or "authors" (the authors'
    settings, all their updates). ``source`` is a folder with the original CSV files. Results are cached in
    ``out/cache``: a run that was killed continues where it stopped.
    ``items`` "category" or "product" runs that half alone; a run without it reuses both halves from the same folder.
    ``seed`` replaces that of the experiments. With ``latex``, all tables are also written to ``out/tables.tex``.
    ``show_progress`` None shows a bar on a terminal and plain lines elsewhere; False shows nothing.
    """
    began = time.monotonic()
    _prepare_report()
    size = load_preset(preset)
    folder = _writable(Path(out))
    own = folder / "tuned.toml"
    tuned = load_tuned(own if size.search and own.exists() else None, size.tuned)
    wanted = [names] if isinstance(names, str) else list(names)
    plans = _on_items([load(name, size, tuned) for name in wanted or size.experiments], items)
    plans = [plan if seed is None else plan.with_seed(check_integer("seed", seed, 0)) for plan in plans]
    _check_names(plans)
    cache = ResultCache(folder / "cache", Splits(size, source, threads), threads)
    with Progress(show_progress is not False, lines=True) as progress:
        if size.search:
            tuned = search.search(plans, folder, source, progress)
            plans = [replace(plan, tuned=tuned) for plan in plans]
        seconds = _run_all(plans, cache, folder, progress)
    _write_record(folder, plans, cache, seconds, time.monotonic() - began)
    _report(folder)
    if latex:
        _latex(folder)
    return folder


def _run_all(plans: list[Plan], cache: ResultCache, folder: Path, progress: Progress) -> dict[str, float]:
    """Each experiment's fits, then its tables; returns the seconds of each."""
    needed = {plan.name: tables.fits_of(plan) for plan in plans}
    progress.begin("steps", sum(map(_steps, _missing([fit for fits in needed.values() for fit in fits], cache))))
    seconds = {}
    for plan in plans:
        began = time.monotonic()
        missing = _missing(needed[plan.name], cache)
        progress.say(f"{plan.name}: {plan.title}; {len(missing)} of {len(needed[plan.name])} fits to make")
        for fit in missing:
            start = time.monotonic()
            cache.result(fit)
            progress.step(f"{plan.name}: {fit}, {time.monotonic() - start:.1f} s", _steps(fit))
        for name, frame in tables.frames(plan, cache).items():
            _write_table(folder, name, frame)
        seconds[plan.name] = time.monotonic() - began
    return seconds


def _missing(fits: list[FitSpec], cache: ResultCache) -> list[FitSpec]:
    """The fits not on disk yet, each once; a model is stored if any of the experiments needs it."""
    keep = {fit for fit in fits if fit.keep_model}
    distinct = [replace(fit, keep_model=fit in keep) for fit in dict.fromkeys(fits)]
    return [fit for fit in distinct if cache.find(fit) is None]


def _steps(fit: FitSpec) -> int:
    """The length of a fit for the progress bar, in million updates, so that the time left is of use."""
    return 1 + fit.updates // 1_000_000


def _on_items(plans: list[Plan], items: str | None) -> list[Plan]:
    """The experiments on these items alone; those without any such dataset are left out."""
    if items is None:
        return plans
    if items not in ITEMS:
        raise InputError(f"there are no items '{items}'; known: {', '.join(ITEMS)}.")
    parts = [part for plan in plans if (part := plan.on([items])).datasets]
    if not parts:
        raise InputError(f"none of these experiments has the items '{items}'.")
    return parts


def _writable(folder: Path) -> Path:
    """The folder, made if need be; refused before any fit if nothing can be written to it."""
    make_folder(folder)
    try:
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


# ---- what is written -----------------------------------------------------------------------------


def _write_table(folder: Path, name: str, frame: pd.DataFrame) -> None:
    with atomic_path(folder / f"{name}.csv") as path:
        frame.to_csv(path, index=False)
    with atomic_path(folder / f"{name}.json") as path:
        frame.to_json(path, orient="records", indent=1, double_precision=15)


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
    items = dict.fromkeys(dataset.items for plan in plans for dataset in plan.datasets)
    record: dict[str, Any] = {
        "preset": preset,
        "presets": {**presets, **dict.fromkeys(seconds, preset)},
        "seed": sorted({*before.get("seed", ()), *seeds}),
        "weeks": {name: cache.splits.world(name).origin.get("weeks") for name in items},
        "source": _source(cache, next(iter(items), None)),
        "experiments": {**earlier, **{name: round(value, 1) for name, value in spent.items()}},
        "own": {**before.get("own", {}), **own},
        "seconds": round(total, 1),
        "fits": {"done": cache.done, "reused": _reused(plans, cache)},
        "versions": _versions(),
        "cpus": os.cpu_count(),
        "threads": cache.threads,
        "machine": platform.machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "earlier_starts": before.get("starts", {}),
    }
    with atomic_path(folder / "run.json") as path:
        path.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _before(folder: Path) -> dict[str, Any]:
    """What run.json says of earlier starts: a run may be made in parts, each with a preset of its own."""
    try:
        old = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        this = {old["date"]: {"seconds": old["seconds"], "fits": old["fits"]["done"]}}
        spent = {name: float(seconds) for name, seconds in old["experiments"].items()}
        presets = {name: str(old.get("presets", {}).get(name, old["preset"])) for name in spent}
        return {
            "experiments": spent, "presets": presets, "seed": [int(seed) for seed in old["seed"]],
            "own": {**old["own"]}, "starts": {**old["earlier_starts"], **this},
        }  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # no record, or an unreadable one: it is written again


def _source(cache: ResultCache, items: str | None) -> str | None:
    """What the worlds were made from, in words; never a path of this machine."""
    origin = cache.splits.world(items).origin if items else {}
    return str(origin.get("source", origin.get("maker"))) if origin else None


def _reused(plans: list[Plan], cache: ResultCache) -> int:
    return len({fit for plan in plans for fit in tables.fits_of(plan)}) - cache.done


def _versions() -> dict[str, str]:
    import numba
    import numpy

    return {
        "taurank": taurank.__version__, "python": platform.python_version(),
        "numpy": numpy.__version__, "numba": numba.__version__,
    }  # fmt: skip


def _prepare_report() -> None:
    """Refuse a run whose report could not be written, for lack of an extra, before any fit."""
    from taurank_paper.report import page  # noqa: F401  (charts are heavy to import)


def _report(folder: Path) -> None:
    from taurank_paper.report import page

    page.write(folder)


def _latex(folder: Path) -> None:
    from taurank_paper.report import page

    page.write_latex(folder)
