"""Small presets, caches and files for the tests of the paper's experiments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from taurank_paper.fits import ResultCache
from taurank_paper.plan import Preset
from taurank_paper.worlds import Splits

# a small experiment of one's own
GOOD = 'kind = "comparison"\nmetrics = ["CDCG"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]\n'


def small(**changes: Any) -> Preset:
    """A preset of synthetic worlds and very short fits."""
    preset = Preset("smoke", 3000, 3, factors={"original": 4, "personalized": 4})
    return replace(preset, **{"sizes": {"category": (30, 20), "product": (30, 40)}, **changes})


def result_cache(folder: Path, preset: Preset | None = None) -> ResultCache:
    return ResultCache(folder / "cache", Splits(preset or small(), None, 1), 1)


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    """A file of an experiment; returns its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)
