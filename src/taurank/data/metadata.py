"""The catalogue inside a Parquet file or an Arrow table: text in its metadata, with a checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from taurank.data.ids import Catalogue
from taurank.errors import InputError

CATALOGUE_KEY = b"taurank.catalogue"
CHECKSUM_KEY = b"taurank.checksum"


def to_metadata(catalogue: Catalogue) -> dict[bytes, bytes]:
    """The catalogue as metadata of a schema."""
    text = catalogue.to_text().encode()
    return {CATALOGUE_KEY: text, CHECKSUM_KEY: _checksum(text)}


def from_metadata(metadata: Mapping[bytes, bytes]) -> Catalogue | None:
    """The catalogue that a schema carries, if it carries one; files of earlier versions have no checksum."""
    text, checksum = metadata.get(CATALOGUE_KEY), metadata.get(CHECKSUM_KEY)
    if checksum is not None and (text is None or checksum != _checksum(text)):
        raise InputError("the catalogue is corrupt (checksum mismatch); save the file again.")
    return None if text is None else Catalogue.from_text(text)


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
