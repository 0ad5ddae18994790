"""The catalogue inside a Parquet file or an Arrow table: text in the metadata of its schema."""

from __future__ import annotations

from collections.abc import Mapping

from taurank.data.ids import Catalogue

CATALOGUE_KEY = b"taurank.catalogue"


def to_metadata(catalogue: Catalogue) -> dict[bytes, bytes]:
    """The catalogue as metadata of a schema."""
    return {CATALOGUE_KEY: catalogue.to_text().encode()}


def from_metadata(metadata: Mapping[bytes, bytes]) -> Catalogue | None:
    """The catalogue that a schema carries, if it carries one."""
    text = metadata.get(CATALOGUE_KEY)
    return None if text is None else Catalogue.from_text(text)
