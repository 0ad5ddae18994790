"""Catalog and eligible cells inside a Parquet file or an Arrow table: text in the metadata of its schema."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from taurank._types import Longs
from taurank.data import storage
from taurank.data.eligibility import Eligibility, Members
from taurank.data.ids import Catalog, ids_from_arrays, ids_to_arrays
from taurank.errors import InputError

CATALOG_KEY = b"taurank.catalog"
ELIGIBILITY_KEY = b"taurank.eligibility"
_UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)


def to_metadata(catalog: Catalog, eligibility: Eligibility | None = None) -> dict[bytes, bytes]:
    """The catalog, and the eligible cells if they are limited, as metadata of a schema."""
    types, arrays = ids_to_arrays(*catalog.lists)
    metadata = {CATALOG_KEY: _to_text("catalog", {"ids": types}, arrays)}
    if eligibility is not None and not (eligibility.is_everything and eligibility.numbers() == (0, 0)):
        steps = {name: _differences(codes) for name, codes in eligibility.arrays().items()}
        metadata[ELIGIBILITY_KEY] = _to_text("eligibility", {"outside": eligibility.numbers()}, steps)
    return metadata


def from_metadata(metadata: Mapping[bytes, bytes]) -> Catalog | None:
    """The catalog that a schema carries, if it carries one."""
    text = metadata.get(CATALOG_KEY)
    if text is None:
        return None
    facts, arrays = _from_text("catalog", text)
    return Catalog(*ids_from_arrays(facts.get("ids"), arrays, "user_id", "item_id", "time"))


def eligibility_from_metadata(metadata: Mapping[bytes, bytes], catalog: Catalog) -> Eligibility:
    """The eligible cells that a schema carries beside its catalog; everything, if it has none."""
    text = metadata.get(ELIGIBILITY_KEY)
    if text is None:
        return Eligibility.everything(catalog)
    facts, steps = _from_text("eligibility", text)
    limits = {"visitors": catalog.n_users, "candidates": catalog.n_items}
    members = {name: Members(size, catalog.n_times) for name, size in limits.items()}
    try:
        listed = _sums(steps.pop("listed"), catalog.n_cells) if "listed" in steps else None
        for key, values in steps.items():
            name, _, form = key.partition("_")
            codes = _sums(values, limits[name] * (catalog.n_times if form == "timed" else 1))
            members[name] = Members(limits[name], catalog.n_times, codes, form == "timed")
        treated, outcomes = facts["outside"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("the eligible cells are not those of the catalog; save the file again.") from error
    return Eligibility(members["visitors"], members["candidates"], listed, treated, outcomes)


def _to_text(kind: str, metadata: Mapping[str, Any], arrays: storage.Arrays) -> bytes:
    return base64.b64encode(pa.compress(storage.to_bytes(kind, metadata, arrays), "zstd", asbytes=True))


def _from_text(kind: str, text: bytes) -> tuple[dict[str, Any], storage.Arrays]:
    try:
        packed = pa.BufferReader(base64.b64decode(text, validate=True))
        data = pa.CompressedInputStream(packed, "zstd").read()
    except (ValueError, OSError) as error:  # OSError: what Arrow raises about damaged bytes
        raise InputError(f"the {kind} is corrupt; save the file again.") from error
    return storage.from_bytes(f"the {kind}", data, kind)


def _differences(codes: Longs) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """Sorted codes as steps from one to the next, from −1 on, in the smallest type: they compress well."""
    steps = np.diff(codes, prepend=-1)
    largest = int(steps.max(initial=0))
    return steps.astype(next(kind for kind in _UNSIGNED if largest <= np.iinfo(kind).max))


def _sums(steps: Any, limit: int) -> Longs:
    """The codes behind the steps, which must be sorted and below the limit."""
    codes: Longs = np.cumsum(steps, dtype=np.int64) - 1
    if len(codes) and not (codes[0] >= 0 and codes[-1] < limit and (codes[1:] > codes[:-1]).all()):
        raise ValueError("the codes are not sorted or out of range")
    return codes
