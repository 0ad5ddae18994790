"""Keyed hashes: where a decision's random numbers, its id and a user's arm come from.

Every value is a keyed BLAKE2b of a purpose and a list of texts. Nothing has a state, so any process can repeat
any draw, and nobody without the secret can predict one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import numpy as np

from taurank.errors import InputError

_SECRET_BYTES = 32


def stream_key(secret: bytes, surface: str, user: str, period: int) -> np.uint64:
    """The key of the random stream of one decision."""
    return np.uint64(int.from_bytes(_digest(secret, "draw", surface, user, str(period), size=8), "little"))


def decision_id(surface: str, user: str, period: int) -> str:
    """One id per surface, user and period, so that a repeated request finds its decision."""
    return _digest(b"", "decision", surface, user, str(period), size=16).hex()


def position(salt: bytes, purpose: str, user: str) -> float:
    """A uniform number in [0, 1) that belongs to the user; another purpose gives an independent one."""
    word = int.from_bytes(_digest(salt, "arm", purpose, user, size=8), "little")
    return (word >> 11) * 2.0**-53


def fingerprint(text: str) -> str:
    """A short content hash, the id of policies and filters."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def secret_for(address: str) -> bytes:
    """The secret in TAURANK_SECRET, or in the file ``secret`` of the store's folder."""
    text = os.environ.get("TAURANK_SECRET")
    if text is not None:
        return _parse_secret(text, "TAURANK_SECRET")
    if "://" in address:
        raise InputError("set TAURANK_SECRET to 64 hexadecimal digits: a PostgreSQL store has no folder for it.")
    return read_secret(address)


def read_secret(folder: str | os.PathLike[str]) -> bytes:
    """The secret in ``folder/secret``, created on first use and readable by its owner only."""
    path = Path(folder) / "secret"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error
    else:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(_SECRET_BYTES))
    return _parse_secret(path.read_text(encoding="ascii"), str(path))


def _parse_secret(text: str, origin: str) -> bytes:
    """A secret written as 64 hexadecimal digits."""
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise InputError(f"the secret in {origin} must be {2 * _SECRET_BYTES} hexadecimal digits.")
    return secret


def _digest(key: bytes, *texts: str, size: int) -> bytes:
    """BLAKE2b of the texts, each preceded by its length, so that no two lists of texts are confused."""
    hashed = hashlib.blake2b(key=key, digest_size=size)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()
