"""Models in the store: checked when they come in, loaded when they are needed.

A model's version is the start of its file's SHA-256, so a repeated upload is the same model. A file is an
archive with its own checksum and without pickle; anything else is refused before it is stored.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import desc, select

from taurank._types import Floats32
from taurank.data import storage
from taurank.errors import InputError
from taurank.learners import Learner, load
from taurank.learners.registry import from_contents
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
        if version in self._loaded:  # without the lock: nobody who has a model waits for another one
            return self._loaded[version]
        with self._lock:
            if version not in self._loaded:
                file = tables.model_files.c
                rows = self._store.rows(select(file.content).where(file.version == version))
                if not rows:
                    raise NotFound(f"there is no model '{version}'.")
                model = ServedModel(version, _read(rows[0]["content"]))
                _ = model.item_code, model.user_code
                self._loaded = {**dict(list(self._loaded.items())[1 - _LOADED_AT_ONCE :]), version: model}
            return self._loaded[version]


def add_model(store: Store, content: bytes, note: str, now: float) -> dict[str, Any]:
    """Check and store a model file; returns its row."""
    version = hashlib.sha256(content).hexdigest()[:16]
    learner = check_model(content)
    row = {
        "version": version, "learner": type(learner).__name__, "users": len(learner.users),
        "items": len(learner.items), "note": note, "created": now,
    }  # fmt: skip
    with store.write() as connection:
        insert_new(connection, tables.models, {version: row})
        insert_new(connection, tables.model_files, {version: {"version": version, "content": content}})
    return store.rows(select(tables.models).where(tables.models.c.version == version))[0]


def list_models(store: Store, limit: int | None = None) -> list[dict[str, Any]]:
    """The stored models, latest first."""
    return store.rows(select(tables.models).order_by(desc(tables.models.c.created)).limit(limit))


def check_model(content: bytes) -> Learner:
    """The learner in a file that can be served; loading checks the arrays by what the learner declares."""
    learner = _read(content)
    if not len(learner.items):
        raise InputError("the model has no items.")
    codes = np.linspace(0, len(learner.users) - 1, min(20, len(learner.users))).astype(np.int32)
    if len(codes) and not np.isfinite(learner.score_block(codes)).all():  # finite factors can have infinite products
        raise InputError("the model has scores that are not finite.")
    return learner


def model_bytes(model: Learner | Path) -> bytes:
    """A fitted learner, or one saved as a file or as a folder of shards, as the content of one file."""
    if isinstance(model, Path) and model.is_file():
        return model.read_bytes()
    metadata, arrays = (load(model) if isinstance(model, Path) else model).contents()
    return storage.to_bytes("model", metadata, {name: np.asarray(array) for name, array in arrays.items()})


def _read(content: bytes) -> Learner:
    """From memory: a full disk must not keep a worker from loading its models."""
    return from_contents("the model file", *storage.from_bytes("the model file", content, "model"))
