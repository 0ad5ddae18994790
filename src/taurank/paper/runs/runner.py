"""The run: plans in, tables out, one experiment after the other, with what is left in sight."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

import taurank
from taurank.data.files import atomic_path
from taurank.errors import InputError
from taurank.paper.plan.plans import ITEMS, NAMES, Plan, load, load_preset, load_tuned
from taurank.paper.runs import tables
from taurank.paper.runs.fits import Job, ResultCache
from taurank.paper.runs.progress import Progress
from taurank.paper.runs.samples import Splits

Folder = str | os.PathLike[str]


def run(
    names: str | Iterable[str], preset: str, source: Folder | None, out: Folder,
    threads: int | None, show_progress: bool | None, items: str | None,
) -> Path:  # fmt: skip
    """See ``taurank.reproduce.run``."""
    began = time.monotonic()
    wanted = [names] if isinstance(names, str) else list(names)
    size = load_preset(preset)
    folder = _made(Path(out))
    own = folder / "tuned.toml"
    tuned = load_tuned(own if size.search and own.exists() else None)
    plans = _pieces([load(name, size, tuned) for name in wanted or NAMES], items)
    _check_names(plans)
    lab = ResultCache(folder / "cache", Splits(size, source, threads), threads)
    with Progress(show_progress) as progress:
        if size.search:
            from taurank.paper.runs import search

            tuned = search.search(plans, folder, source, progress)
            plans = [replace(each, tuned=tuned) for each in plans]
        seconds = _run_all(plans, lab, folder, progress)
    _write_record(folder, plans, lab, seconds, time.monotonic() - began, source)
    _report(folder)
    return folder


def _run_all(plans: list[Plan], lab: ResultCache, folder: Path, progress: Progress) -> dict[str, float]:
    """Each experiment's fits, then its tables; gives the seconds of each."""
    needed = {each.name: tables.jobs(each) for each in plans}
    progress.plan(len(_missing([job for jobs in needed.values() for job in jobs], lab)))
    seconds = {}
    for each in plans:
        began = time.monotonic()
        missing = _missing(needed[each.name], lab)
        progress.say(f"{each.name}: {each.title}; {len(missing)} of {len(needed[each.name])} fits to make")
        for job in missing:
            start = time.monotonic()
            lab.result(job)
            progress.step(f"{each.name}: {job}", time.monotonic() - start)
        for name, frame in tables.frames(each, lab).items():
            _write_table(folder, name, frame)
        seconds[each.name] = time.monotonic() - began
    return seconds


def _missing(jobs: list[Job], lab: ResultCache) -> list[Job]:
    """The fits not on disk yet, each once; a model is kept if any of the experiments wants it."""
    keep = {job for job in jobs if job.keep_model}
    distinct = dict.fromkeys(jobs)
    return [each for each in (replace(job, keep_model=job in keep) for job in distinct) if lab.find(each) is None]


def _pieces(plans: list[Plan], items: str | None) -> list[Plan]:
    """The experiments on these items alone; those without any such data are left out."""
    if items is None:
        return plans
    if items not in ITEMS:
        raise InputError(f"there are no items '{items}'; known are {', '.join(ITEMS)}.")
    pieces = [piece for each in plans if (piece := each.on([items])).data]
    if not pieces:
        raise InputError(f"none of these experiments has the items '{items}'.")
    return pieces


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder '{folder}' cannot be made: {error.strerror}.") from error
    return folder


def _check_names(plans: list[Plan]) -> None:
    names = [each.name for each in plans]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two experiments are called '{name}'; their tables would overwrite each other.")


# ---- what is written -----------------------------------------------------------------------------


def _write_table(folder: Path, name: str, frame: pd.DataFrame) -> None:
    with atomic_path(folder / f"{name}.csv") as path:
        frame.to_csv(path, index=False)
    with atomic_path(folder / f"{name}.json") as path:
        frame.to_json(path, orient="records", indent=1, double_precision=15)


def _write_record(
    folder: Path,
    plans: list[Plan],
    lab: ResultCache,
    seconds: Mapping[str, float],
    total: float,
    source: Folder | None,
) -> None:
    """run.json: what is needed to know where the figures come from; earlier starts in this folder count too."""
    before = _before(folder, plans[0].preset.name)
    spent = {name: before.get("experiments", {}).get(name, 0.0) + value for name, value in seconds.items()}
    own = {each.name: {"kind": each.kind, "title": each.title} for each in plans if each.name not in NAMES}
    items = dict.fromkeys(data.items for each in plans for data in each.data)
    facts: dict[str, Any] = {
        "preset": plans[0].preset.name,
        "seed": sorted({data.seed for each in plans for data in each.data}),
        "weeks": {name: lab.scenes.world(name).origin.get("weeks") for name in items},
        "source": _source(lab, next(iter(items), None)),
        "experiments": {**before.get("experiments", {}), **{name: round(value, 1) for name, value in spent.items()}},
        "own": {**before.get("own", {}), **own},
        "seconds": round(total, 1),
        "fits": {"done": lab.done, "reused": _reused(plans, lab)},
        "versions": _versions(),
        "cpus": os.cpu_count(),
        "threads": lab.threads,
        "machine": platform.machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "earlier_starts": before.get("starts", {}),
    }
    with atomic_path(folder / "run.json") as path:
        path.write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _before(folder: Path, preset: str) -> dict[str, Any]:
    """What run.json says of earlier starts with this preset: a run may be made in pieces."""
    try:
        old = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if old["preset"] != preset:
            return {}
        this = {old["date"]: {"seconds": old["seconds"], "fits": old["fits"]["done"]}}
        return {**old, "starts": {**old.get("earlier_starts", {}), **this}}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # no record, or one that cannot be read: it is made anew


def _source(lab: ResultCache, items: str | None) -> str | None:
    """What the worlds were made from, in words; never a path of this machine."""
    origin = lab.scenes.world(items).origin if items else {}
    return str(origin.get("source", origin.get("maker"))) if origin else None


def _reused(plans: list[Plan], lab: ResultCache) -> int:
    return len({job for each in plans for job in tables.jobs(each)}) - lab.done


def _versions() -> dict[str, str]:
    import numba
    import numpy

    return {
        "taurank": taurank.__version__, "python": platform.python_version(),
        "numpy": numpy.__version__, "numba": numba.__version__,
    }  # fmt: skip


def _report(folder: Path) -> None:
    from taurank.paper.report import page  # charts are heavy to import

    page.write(folder)
