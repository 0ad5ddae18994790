"""Configuration files: TOML, checked by pydantic. Whatever is wrong becomes one sentence about the first flaw."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from taurank.errors import InputError, first_line, show

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

_WORDS = (  # of pydantic's messages, and ours
    ("Input should be", "must be"), ("Input is not", "must be"), ("Tuple should have", "must have"),
    (" after validation", ""), ("greater than or equal to", "≥"), ("less than or equal to", "≤"),
    ("a valid integer", "an integer"), ("a valid ", "a "), ("a dictionary or an instance of", "a table:"),
    ("a dictionary or instance of", "a table:"),
    ("a dictionary", "a table"),
)  # fmt: skip


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file."""
    name = os.fspath(path)
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"'{name}' cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{name}' is not valid TOML: {first_line(error)}.") from error


def validated(kind: type[T], content: Any, where: str) -> T:
    """The content as a pydantic model or dataclass; ``where`` begins the sentence about a flaw."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{where}: {_sentence(error, kind)}.") from error


def _sentence(error: ValidationError, kind: Any) -> str:
    """The first flaw: where it is, what is wrong, and what was given."""
    flaw = error.errors(include_url=False)[0]
    place = [part for part in flaw["loc"] if part != "[key]"]
    path = list(_path(place))
    if flaw["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        what = f": unknown key {show(path.pop())}; known: {', '.join(_keys(kind, place[:-1]))}"
    elif flaw["type"] in ("missing", "missing_argument"):
        what = f": '{path.pop()}' is missing"
    elif flaw["type"] == "value_error":
        message = str(flaw["ctx"]["error"]).rstrip(".")
        what = f" {message}" if message.startswith("must") else f": {message}"
    else:
        message = flaw["msg"]
        for theirs, ours in _WORDS:
            message = message.replace(theirs, ours)
        what = f" {message.partition(':')[0]}, got {show(flaw['input'])}"
    return f"{': '.join(path)}{what}".removeprefix(": ").strip()


def _path(place: Sequence[int | str]) -> Iterator[str]:
    """Tables and keys by name, the entries of an array of tables by number: [[data]] 1, settings."""
    for n, part in enumerate(place):
        if isinstance(part, str):
            in_array = n + 2 < len(place) and isinstance(place[n + 1], int)
            yield f"[[{part}]] {int(place[n + 1]) + 1}" if in_array else part


def _keys(kind: Any, place: Sequence[int | str]) -> list[str]:
    """The fields of the model at a place inside another."""
    for part in place:
        if isinstance(part, str):
            annotation = kind.__pydantic_fields__[part].annotation
            kind = next(each for each in (annotation, *get_args(annotation)) if hasattr(each, "__pydantic_fields__"))
    return list(kind.__pydantic_fields__)
