"""The cache of results: what was measured is a small file named by a hash of everything it depends on.

So a fit that two experiments share is made once, and a killed run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import taurank
from taurank.data.files import atomic_path
from taurank.errors import InputError
from taurank.learners import Learner, learner_class, load
from taurank_paper.plan.names import LIMITS
from taurank_paper.runs.fits import RETRIES, FitResult, FitSpec, Report, measured_fit
from taurank_paper.runs.snapshots import long_fit
from taurank_paper.runs.splits import Splits

RESULT_VERSION = 3  # raise it whenever the same settings give other figures


class ResultCache:
    """Makes fits, or reads them from disk: ``done`` and ``reused`` count them."""

    def __init__(self, folder: Path, splits: Splits, threads: int | None = None) -> None:
        self.folder, self.splits, self.threads = folder, splits, threads
        self.done = self.reused = 0

    def result(self, spec: FitSpec, report: Report | None = None, retries: int = RETRIES) -> FitResult:
        """The measured fit; ``report`` as in ``measured_fit``."""
        stored = self.find(spec)
        if stored is not None:
            self.reused += 1
            return stored
        split = self.splits.split(spec.dataset)
        if spec.snapshots:
            result = long_fit(spec, split, self.threads, make_folder(self.folder) / self.key(spec))
        else:
            result, model = measured_fit(spec, split, self.threads, report, retries)
            if spec.keep_model and model is not None:
                make_folder(self.folder)
                model.save(self._model_path(spec))
        self.write(self.key(spec), {"fit": asdict(spec), **result.to_json()})
        self.done += 1
        return result

    def find(self, spec: FitSpec) -> FitResult | None:
        """The fit from the disk, if it is there, with its model if that is wanted."""
        if spec.keep_model and spec.method not in LIMITS and not self._model_path(spec).exists():
            return None
        stored = self.read(self.key(spec))
        try:
            return None if stored is None else FitResult.from_json(stored)
        except (KeyError, TypeError, AttributeError):
            return None

    def model(self, spec: FitSpec) -> Learner:
        """The fitted learner of a spec with ``keep_model``."""
        return load(self._model_path(spec), trust=[learner_class(spec.method).__module__])

    def key(self, spec: FitSpec, *more: Any) -> str:
        """A hash of everything the result depends on; threads and folders are not among it."""
        settings = asdict(spec)
        del settings["keep_model"]
        world = self.splits.fingerprint(spec.dataset.items)
        parts = [RESULT_VERSION, taurank.__version__, world, _source_hash(spec.method), settings, *more]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def read(self, key: str) -> dict[str, Any] | None:
        """What is stored under this key; None if there is nothing, or nothing readable."""
        try:
            stored = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return stored if isinstance(stored, dict) else None

    def write(self, key: str, content: Mapping[str, Any]) -> None:
        """Store ``content`` under a key; the file appears whole."""
        make_folder(self.folder)
        with atomic_path(self.folder / f"{key}.json") as path:
            path.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def cached(self, key: str, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What is stored under this key, measured and stored first if need be."""
        stored = self.read(key)
        if stored is None:
            stored = dict(measure())
            self.write(key, stored)
        return stored

    def _model_path(self, spec: FitSpec) -> Path:
        return self.folder / f"{self.key(spec)}.model"


def make_folder(folder: Path) -> Path:
    """Create a folder if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder '{folder}' cannot be created: {error.strerror}.") from error
    return folder


def _source_hash(method: str) -> str | None:
    """Of a learner of one's own, the text of its module: after a change its fits are made again."""
    if ":" not in method:
        return None
    try:
        text = inspect.getsource(sys.modules[learner_class(method).__module__])
    except (OSError, TypeError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:24]
