"""The child of ``files``: mutate, read, count. Usage: file_child.py WHAT FOLDER SEED FIRST SECONDS."""

from __future__ import annotations

import base64
import json
import resource
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import taurank as tr
from taurank.data import storage
from taurank.errors import InputError

ALLOWED_GROWTH = 256 << 20  # bytes of peak memory beyond the first reads, for files below 1 MB
Read = Callable[[Path], None]


# ---- bytes ---------------------------------------------------------------------------------------


def mutated(data: bytes, rng: np.random.Generator, low: int = 0) -> bytes:
    """The bytes with one small accident somewhere behind ``low``."""
    out = bytearray(data)
    at = int(rng.integers(low, len(out)))
    kind = int(rng.integers(6))
    if kind == 0:
        out[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        for where in rng.integers(low, len(out), int(rng.integers(1, 9))):
            out[where] = int(rng.integers(256))
    elif kind == 2:
        del out[at:]
    elif kind == 3:
        size = int(rng.integers(1, 65))
        out[at : at + size] = bytes(min(size, len(out) - at))
    elif kind == 4:
        size = int(rng.integers(1, 257))
        out[at:at] = out[at : at + size]
    else:
        out[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1])))
    return bytes(out)


# ---- logs ----------------------------------------------------------------------------------------


def sample() -> Any:
    return tr.World.synthetic(40, 20, random_state=0).sample(3, random_state=1)


def read_log(path: Path) -> None:
    log = tr.Log.read(path)
    log.describe()
    log.to_arrow().validate(full=True)


def logs(folder: Path) -> tuple[Callable[[np.random.Generator], Path], Read]:
    log = sample().log
    named = log.to_frame().assign(user_id=lambda frame: frame["user_id"].map("user {}".format))
    log.write(folder / "ours.parquet")
    named.to_parquet(folder / "theirs.parquet")
    log.write(folder / "ours.csv")
    whole = {name: (folder / name).read_bytes() for name in ("ours.parquet", "theirs.parquet", "ours.csv")}

    def make(rng: np.random.Generator) -> Path:
        name = str(rng.choice(list(whole)))
        path = folder / f"log{Path(name).suffix}"
        path.write_bytes(mutated(whole[name], rng))
        return path

    return make, read_log


def catalogs(folder: Path) -> tuple[Callable[[np.random.Generator], Path], Read]:
    table = sample().log.to_arrow()
    ((key, text),) = ((k, v) for k, v in table.schema.metadata.items() if k.startswith(b"taurank"))
    packed = base64.b64decode(text)
    plain = pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read()
    path = folder / "log.parquet"

    def make(rng: np.random.Generator) -> Path:
        inside = pa.compress(mutated(plain, rng), "zstd", asbytes=True)
        bad = base64.b64encode(inside if rng.random() < 0.5 else mutated(packed, rng))
        pa.parquet.write_table(table.replace_schema_metadata({key: bad}), path)
        return path

    return make, read_log


# ---- models and worlds ---------------------------------------------------------------------------


def archives(folder: Path) -> tuple[Callable[[np.random.Generator], Path], Read]:
    world = tr.World.synthetic(30, 20, random_state=0)
    log = world.sample(3, random_state=1).log
    world.save(folder / "world")
    for name, learner in tr.learners.LEARNERS.items():
        factors = {"factors": 4, "epochs": 2} if hasattr(learner, "factors") else {}
        learner(random_state=0, **factors).fit(log).save(folder / name)
    kinds = {"world": "world", **dict.fromkeys(tr.learners.LEARNERS, "model")}
    whole = {name: storage.read(folder / name, kind) for name, kind in kinds.items()}

    def make(rng: np.random.Generator) -> Path:
        name = str(rng.choice(list(whole)))
        path = folder / f"bad_{kinds[name]}"
        if rng.random() < 0.2:
            path.write_bytes(mutated((folder / name).read_bytes(), rng))
            return path
        metadata, arrays = whole[name]
        storage.write(path, kinds[name], *_crafted(json.loads(json.dumps(metadata)), dict(arrays), rng))
        return path

    def read(path: Path) -> None:
        if path.name == "bad_world":
            tr.World.load(path).sample(1, random_state=0)
            return
        model = tr.load(path)
        frame = model.recommend(k=3, exclude=log)
        assert np.isfinite(frame["score"]).all(), "a score is not finite"
        assert len(frame), "nothing is recommended"

    return make, read


def _crafted(metadata: dict[str, Any], arrays: dict[str, Any], rng: np.random.Generator) -> Any:
    """One thing that does not fit: a shape, a type, an array too many or too few, odd values, a lost key."""
    name = str(rng.choice(list(arrays)))
    array = arrays[name]
    kind = int(rng.integers(8))
    if kind == 0:
        arrays[name] = np.resize(array, [int(rng.choice([0, 1, size + 1])) for size in array.shape])
    elif kind == 1:
        arrays[name] = np.zeros(array.shape, str(rng.choice(["f4", "f8", "i4", "u1", "?", "u8"])))
    elif kind == 2:
        del arrays[name]
    elif kind == 3:
        arrays["users"] = np.zeros(1, np.int32)
    elif kind == 4:
        odd = {"f": np.nan, "i": -1, "u": 255}.get(array.dtype.kind, 0)
        arrays[name] = np.full(array.shape, odd, array.dtype)
    elif kind == 5:
        content = bytearray(array.tobytes())
        for at in rng.integers(0, max(len(content), 1), 3 if content else 0):
            content[at] = int(rng.integers(256))
        arrays[name] = np.frombuffer(bytes(content), array.dtype).reshape(array.shape)
    elif kind == 6:
        _damage(metadata, rng)
    else:
        arrays["other"] = arrays.pop(name)
    return metadata, arrays


def _damage(table: dict[str, Any], rng: np.random.Generator) -> None:
    """Lose a key, or give it another kind of value, somewhere in nested tables."""
    key = str(rng.choice(sorted(table)))
    if isinstance(table[key], dict) and table[key] and rng.random() < 0.7:
        _damage(table[key], rng)
    elif rng.random() < 0.3:
        del table[key]
    else:
        odd: list[Any] = [None, -1, 10**400, "x", [], {}, [[]] * 3, True, 1e308, "\x00"]
        table[key] = odd[int(rng.integers(len(odd)))]


# ---- the loop ------------------------------------------------------------------------------------


def tries(make: Callable[[np.random.Generator], Path], seed: int, first: int, seconds: float) -> Iterator[Any]:
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        yield number, make(np.random.default_rng([seed, number]))
        number += 1


def main(what: str, place: str, seed: str, first: str, seconds: str) -> None:
    folder = Path(place)
    warnings.simplefilter("ignore")
    make, read = {"logs": logs, "catalogs": catalogs, "archives": archives}[what](folder)
    counts: dict[str, Any] = {"tried": 0, "refused": 0, "accepted": 0, "violations": [], "now": int(first) - 1}
    steady = 0
    for number, path in tries(make, int(seed), int(first), float(seconds)):
        counts["now"] = number
        (folder / "counts.json").write_text(json.dumps(counts))
        counts["tried"] += 1
        try:
            read(path)
            counts["accepted"] += 1
        except InputError:
            counts["refused"] += 1
        except Exception as error:
            counts["violations"].append(f"{what}, try {number}: {type(error).__name__}: {str(error)[:150]}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if counts["tried"] == 20:
            steady = peak
        if steady and peak > steady + ALLOWED_GROWTH:
            counts["violations"].append(f"{what}, try {number}: peak memory grew by {(peak - steady) >> 20} MB")
            steady = peak
    (folder / "counts.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
