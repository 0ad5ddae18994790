"""A seal for Parquet files: a checksum of the footer, in the gap that the format allows before the footer.

Page checksums cover the pages, but not the footer with the names of the columns and the catalog: one flipped
bit could turn an optional column into an unknown one. Other tools pass over the seal when they read a file and
do not copy it when they write one, so a sealed file whose footer does not fit is damaged.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from taurank.errors import InputError

_MARK = b"taurank.footer\x01"
_DIGEST = 16
_SIZE = len(_MARK) + _DIGEST
_END = b"PAR1"


def seal(path: Path) -> None:
    """Put the seal in front of the footer of a Parquet file that was just written."""
    with open(path, "r+b") as stream:
        start, footer = _footer(stream)
        stream.seek(start)
        stream.write(_MARK + _checksum(footer) + footer)


def check_seal(path: Path) -> None:
    """Refuse a sealed file whose footer has changed; a file without a seal comes from another tool."""
    with open(path, "rb") as stream:
        start, footer = _footer(stream)
        if start < _SIZE:
            return
        stream.seek(start - _SIZE)
        seal = stream.read(_SIZE)
    if seal.startswith(_MARK) and seal[len(_MARK) :] != _checksum(footer):
        raise InputError(f"'{path}' is corrupt (checksum mismatch); save it again.")


def _footer(stream: BinaryIO) -> tuple[int, bytes]:
    """Where the footer begins, and the footer with its length and the magic word behind it."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - 8, 0))
    end = stream.read(8)
    start = size - 8 - int.from_bytes(end[:4], "little")
    if end[4:] != _END or start < len(_END):
        return 0, b""  # not a Parquet file: Arrow will say so
    stream.seek(start)
    return start, stream.read()


def _checksum(footer: bytes) -> bytes:
    return hashlib.blake2b(footer, digest_size=_DIGEST).digest()
