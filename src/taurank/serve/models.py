"""Models in the store: checked when they come in, loaded when they are needed.

A model's version is the start of its file's SHA-256, so a repeated upload is the same model. A file is an
archive with its own checksum and without pickle; anything else is refused before it is stored.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import desc, select

from taurank._types import Floats32
from taurank.errors import InputError, first_line
from taurank.learners import Learner, load
from taurank.serve import tables
from taurank.serve.store import NotFound, Store, insert_new

_LOADED_AT_ONCE = 4


@dataclass(frozen=True)
class ServedModel:
    """A fitted learner that scores one user at a time, by text ids."""

    version: str
    learner: Learner

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(map(str, self.learner.items.values.to_pylist()))

    @cached_property
    def item_code(self) -> dict[str, int]:
        return {item: code for code, item in enumerate(self.items)}

    @cached_property
    def user_code(self) -> dict[str, int]:
        return {str(user): code for code, user in enumerate(self.learner.users.values.to_pylist())}

    def scores(self, user: str) -> Floats32:
        """Scores of all items; a user that the model does not know gets the popularity of each item."""
        code = self.user_code.get(user)
        if code is None:
            return np.asarray(self.learner.popularity_, dtype=np.float32)
        return np.asarray(self.learner.score_block(np.array([code], np.int32))[0])


class Registry:
    """The models of a store; the ones in use are held in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: dict[str, ServedModel] = {}
        self._lock = threading.Lock()

    def __contains__(self, version: str) -> bool:
        """Whether the model is in memory."""
        return version in self._loaded

    def get(self, version: str) -> ServedModel:
        model = self._loaded.get(version)
        if model is None:
            with self._lock:
                model = self._loaded.get(version) or self._load(version)
        return model

    def _load(self, version: str) -> ServedModel:
        model = ServedModel(version, read_model(self._store, version))
        _ = model.item_code, model.user_code
        while len(self._loaded) >= _LOADED_AT_ONCE:
            self._loaded.pop(next(iter(self._loaded)))
        self._loaded[version] = model
        return model


def read_model(store: Store, version: str) -> Learner:
    """The learner of a stored model, as an object of its own."""
    rows = store.rows(select(tables.model_files.c.content).where(tables.model_files.c.version == version))
    if not rows:
        raise NotFound(f"there is no model '{version}'.")
    return _read(rows[0]["content"])


def add_model(store: Store, content: bytes, note: str, now: float) -> dict[str, Any]:
    """Check and store a model file; returns its row."""
    version = hashlib.sha256(content).hexdigest()[:16]
    learner = check_model(content)
    row = {
        "version": version, "learner": type(learner).__name__, "users": len(learner.users),
        "items": len(learner.items), "note": note, "created": now,
    }  # fmt: skip
    with store.write() as connection:
        insert_new(connection, tables.models, [row])
        insert_new(connection, tables.model_files, [{"version": version, "content": content}])
    return store.rows(select(tables.models).where(tables.models.c.version == version))[0]


def list_models(store: Store, limit: int | None = None) -> list[dict[str, Any]]:
    """The stored models, latest first."""
    return store.rows(select(tables.models).order_by(desc(tables.models.c.created)).limit(limit))


def check_model(content: bytes) -> Learner:
    """The learner in a file that can be served: whole, complete, with finite scores."""
    try:
        learner = _read(content)
        if not len(learner.items):
            raise InputError("the model has no items.")
        codes = np.unique(np.linspace(0, max(0, len(learner.users) - 1), 20).astype(np.int32))
        scores = learner.score_block(codes[: len(learner.users)])
        wrong_shape = scores.shape != (min(len(codes), len(learner.users)), len(learner.items))
        if wrong_shape or len(learner.popularity_) != len(learner.items):
            raise InputError("the arrays of the model do not fit together.")
        if not np.isfinite(scores).all() or not _finite_arrays(learner):
            raise InputError("the model has numbers that are not finite.")
    except InputError:
        raise
    except Exception as error:  # a file with a valid checksum can still hold arrays of any shape
        raise InputError(f"the model cannot be used: {first_line(error)}.") from error
    return learner


def _finite_arrays(learner: Learner) -> bool:
    names = [f"{name}_" for name in ("popularity", *learner.stored)]
    arrays = [getattr(learner, name) for name in names if name in learner.__dict__]
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind in "fiu")


def model_bytes(model: Learner | Path) -> bytes:
    """A fitted learner, or one saved as a file or as a folder of shards, as the content of one file."""
    if isinstance(model, Path) and model.is_file():
        return model.read_bytes()
    learner = load(model) if isinstance(model, Path) else model
    if isinstance(model, Path):  # the arrays of a folder stay there; in one file they are whole
        arrays, metadata = learner._state()
        learner._set_state({name: np.asarray(array) for name, array in arrays.items()}, metadata)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        learner.save(path)
        return path.read_bytes()


def _read(content: bytes) -> Learner:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(content)
        try:
            return load(path)
        except InputError as error:
            raise InputError(str(error).replace(f"'{path}'", "the model file")) from error
