"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from taurank.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Write a file through a temporary one beside it; its folder is made if need be."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error
