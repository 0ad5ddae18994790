"""Damaged and crafted files, by the thousand: python mutations.py KIND SEED COUNT (a process of its own).

``parquet`` changes bytes of a Parquet log, ``catalog`` changes the stream of ids inside one, ``ids`` that
stream alone,
``world`` changes a saved world and signs it again. It prints one line of JSON: how many files were refused, accepted
with the same content, accepted with another content, and which errors other than InputError escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import taurank as tr
from taurank.data import metadata
from taurank.data.packing import unpack
from taurank.errors import InputError

Mutated = Callable[[np.random.Generator], bytes]


@cache
def some_log() -> tr.Log:
    """A small log with ids of three types, and more of them than rows."""
    log = tr.World.synthetic(12, 8, random_state=0).sample(2, random_state=1).log
    frame = log.to_frame()
    frame["user_id"] = "u" + frame["user_id"].astype(str)
    return tr.Log.from_frame(frame, users=[f"u{n}" for n in range(20)], times=np.arange(4))


@cache
def some_world() -> tr.World:
    return tr.World.synthetic(6, 5, random_state=0)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """One to three changes: a bit, a byte, a number, a stretch of zeros, a cut, a repetition."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 4) if rng.random() < 0.5 else 1):
        at = int(rng.integers(len(changed)))
        kind = rng.integers(6)
        if kind <= 1:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            changed[at] = int(rng.integers(256))
        elif kind == 3:
            number = int(rng.choice([-1, 2**31 - 1, -(2**31), 2**62, int(rng.integers(-1000, 1000))]))
            changed[at : at + 8] = number.to_bytes(8, "little", signed=True)[: len(changed) - at]
        elif kind == 4:
            end = min(at + int(rng.integers(1, 64)), len(changed))
            changed[at:end] = bytes(end - at)
        elif len(changed) > 64:
            end = at + int(rng.integers(1, 64))
            changed[at:at] = changed[at:end] if rng.random() < 0.5 else b""
            del changed[len(changed) - int(rng.integers(0, 8)) :]
    return bytes(changed)


def parquet_files(folder: Path) -> Mutated:
    some_log().write(folder / "whole.parquet")
    data = (folder / "whole.parquet").read_bytes()
    return lambda rng: mutate(data, rng)


def catalog_files(folder: Path) -> Mutated:
    table = some_log().to_arrow()
    stream = base64.b64decode(table.schema.metadata[metadata.CATALOG_KEY])

    def make(rng: np.random.Generator) -> bytes:
        text = base64.b64encode(mutate(stream, rng))
        pq.write_table(table.replace_schema_metadata({metadata.CATALOG_KEY: text}), folder / "other.parquet")
        return (folder / "other.parquet").read_bytes()

    return make


def id_streams(folder: Path) -> Mutated:
    stream = base64.b64decode(some_log().to_arrow().schema.metadata[metadata.CATALOG_KEY])
    return lambda rng: mutate(stream, rng)


def world_files(folder: Path) -> Mutated:
    some_world().save(folder / "whole.world")
    content = (folder / "whole.world").read_bytes()[:-32]

    def make(rng: np.random.Generator) -> bytes:
        changed = mutate(content, rng)
        return changed + hashlib.sha256(changed).digest()

    return make


def read_log(path: Path) -> Any:
    return tr.Log.read(path)


KINDS: dict[str, tuple[str, Callable[[Path], Mutated], Callable[[Path], Any]]] = {
    "parquet": ("log.parquet", parquet_files, read_log),
    "catalog": ("log.parquet", catalog_files, read_log),
    "ids": ("ids", id_streams, lambda path: unpack(path.read_bytes())),
    "world": ("a.world", world_files, tr.World.load),
}


def same(result: Any) -> bool:
    if isinstance(result, tr.Log):
        return result.equals(some_log())
    if isinstance(result, dict):
        return list(result.values()) == [ids.values for ids in (some_log().users, some_log().items, some_log().times)]
    return np.array_equal(result.propensity, some_world().propensity)


def run(kind: str, seed: int, count: int) -> dict[str, Any]:
    name, make, read = KINDS[kind]
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    escaped: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path, mutated = Path(folder) / name, make(Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            path.write_bytes(mutated(rng))
            try:
                counts["same" if same(read(path)) else "other"] += 1
            except InputError:
                counts["refused"] += 1
            except Exception as error:
                escaped.append(f"file {number}: {type(error).__name__}: {error}"[:200])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"files": count, **counts, "escaped": escaped, "grown_bytes": grown}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
