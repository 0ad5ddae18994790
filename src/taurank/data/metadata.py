"""Catalog and eligible cells inside a Parquet file or an Arrow table: text in the metadata of its schema."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from taurank._types import Longs
from taurank.data.eligibility import Eligibility, Members
from taurank.data.ids import Catalog
from taurank.data.packing import pack, unpack
from taurank.errors import InputError

CATALOG_KEY = b"taurank.catalog"
ELIGIBILITY_KEY = b"taurank.eligibility"
_UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)


def to_metadata(catalog: Catalog, eligibility: Eligibility | None = None) -> dict[bytes, bytes]:
    """The catalog, and the eligible cells if they are limited, as metadata of a schema."""
    metadata = {CATALOG_KEY: catalog.to_text().encode()}
    if eligibility is not None and not (eligibility.is_everything and eligibility.numbers() == (0, 0)):
        metadata[ELIGIBILITY_KEY] = base64.b64encode(_pack(eligibility))
    return metadata


def from_metadata(metadata: Mapping[bytes, bytes]) -> Catalog | None:
    """The catalog that a schema carries, if it carries one."""
    text = metadata.get(CATALOG_KEY)
    return None if text is None else Catalog.from_text(text)


def eligibility_from_metadata(metadata: Mapping[bytes, bytes], catalog: Catalog) -> Eligibility:
    """The eligible cells that a schema carries beside its catalog; everything, if it has none."""
    text = metadata.get(ELIGIBILITY_KEY)
    if text is None:
        return Eligibility.everything(catalog)
    try:
        return _unpack(base64.b64decode(text, validate=True), catalog)
    except ValueError as error:  # InputError is one
        raise InputError("the eligible cells are corrupt; save the file again.") from error


def _pack(eligibility: Eligibility) -> bytes:
    lists = {"outside": pa.array(eligibility.numbers(), pa.int64())}
    lists |= {name: pa.array(_differences(codes)) for name, codes in eligibility.arrays().items()}
    return pack(lists)


def _unpack(data: bytes, catalog: Catalog) -> Eligibility:
    lists = unpack(data)
    treated, outcomes = lists.pop("outside").cast(pa.int64()).to_pylist()
    limits = {"visitors": catalog.n_users, "candidates": catalog.n_items}
    members = {name: Members(size, catalog.n_times) for name, size in limits.items()}
    listed = _sums(lists.pop("listed"), catalog.n_cells) if "listed" in lists else None
    for key, values in lists.items():
        name, _, form = key.partition("_")
        if name not in limits or form not in ("timed", "always"):
            raise ValueError(f"the list '{key}' is unknown")
        codes = _sums(values, limits[name] * (catalog.n_times if form == "timed" else 1))
        members[name] = Members(limits[name], catalog.n_times, codes, form == "timed")
    return Eligibility(members["visitors"], members["candidates"], listed, treated, outcomes)


def _differences(codes: Longs) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """Sorted codes as steps from one to the next, from −1 on, in the smallest type: they compress well."""
    steps = np.diff(codes, prepend=-1)
    largest = int(steps.max(initial=0))
    return steps.astype(next(kind for kind in _UNSIGNED if largest <= np.iinfo(kind).max))


def _sums(steps: pa.Array, limit: int) -> Longs:
    """The codes behind the steps, which must be sorted and below the limit."""
    codes: Longs = np.cumsum(np.asarray(steps.cast(pa.int64())), dtype=np.int64) - 1
    if len(codes) and not (codes[0] >= 0 and codes[-1] < limit and (codes[1:] > codes[:-1]).all()):
        raise ValueError("the codes are not sorted or out of range")
    return codes
