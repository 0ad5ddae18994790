"""A table of a TOML file that is read key by key; whatever is wrong becomes one sentence with the place."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from taurank.errors import InputError, first_line, show

Value = TypeVar("Value")


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {first_line(error)}.") from error


class TomlTable:
    """One table. ``where`` is its name in messages; ``finish`` refuses keys that were never asked for."""

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, dict):
            raise InputError(f"{where} must be a table, got {show(content)}.")
        self.content, self.where = content, where
        self.known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def finish(self) -> None:
        """Refuse unknown keys."""
        for key in self.content:
            if key not in self.known:
                known = ", ".join(self.known) or "none"
                raise InputError(f"{self.where}: unknown key {show(key)}; known: {known}.")

    def integer(self, key: str, default: int, minimum: int = 0, maximum: float = math.inf) -> int:
        return self._value(
            key, default, lambda value: is_integer(value, minimum, maximum), _range("an integer", minimum, maximum)
        )

    def number(self, key: str, default: float, minimum: float = 0.0) -> float:
        return float(self._value(key, default, lambda value: is_number(value, minimum), _range("a number", minimum)))

    def flag(self, key: str, default: bool) -> bool:
        return self._value(key, default, lambda value: isinstance(value, bool), "true or false")

    def text(self, key: str, default: str) -> str:
        return self._value(key, default, is_label, "a short text of printable characters")

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """One of ``options``; needed if ``default`` is not one of them."""
        wanted = f"one of {', '.join(options)}"
        if key not in self.content and default not in options:
            raise InputError(f"{self.where}: '{key}' is missing; it must be {wanted}.")
        return self._value(key, str(default), lambda value: isinstance(value, str) and value in options, wanted)

    def values(self, key: str) -> list[Any]:
        """A list that is not empty; an empty one where the key is absent."""
        return self._value(
            key, [], lambda value: isinstance(value, list) and value != [], "a list with at least one value"
        )

    def table(self, key: str) -> TomlTable:
        """A table below this one; an empty one where the key is absent."""
        self.known.append(key)
        return TomlTable(self.content.get(key, {}), f"{self.where}: {key}")

    def tables(self, key: str) -> list[TomlTable]:
        """All entries [[key]]."""
        return [TomlTable(entry, f"{self.where}: [[{key}]] {n}") for n, entry in enumerate(self.values(key), 1)]

    def _value(self, key: str, default: Value, test: Callable[[Any], bool], wanted: str) -> Value:
        self.known.append(key)
        if key not in self.content:
            return default
        value: Value = self.content[key]
        if not test(value):
            raise InputError(f"{self.where}: {key} must be {wanted}, got {show(value)}.")
        return value


def is_integer(value: Any, minimum: int, maximum: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def is_number(value: Any, minimum: float, maximum: float = math.inf) -> bool:
    """A finite number between two bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return minimum <= value <= min(maximum, 1e300)


def is_label(value: Any) -> bool:
    """Text that fits in a table: not blank, not long, without control characters."""
    return isinstance(value, str) and 0 < len(value.strip()) <= 200 and value.isprintable()


def _range(what: str, minimum: float, maximum: float = math.inf) -> str:
    return f"{what} ≥ {minimum:g}" if math.isinf(maximum) else f"{what} between {minimum:g} and {maximum:g}"
