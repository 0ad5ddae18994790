"""Errors and warnings that reach the user, and the helpers that word them."""

from __future__ import annotations

import json
import unicodedata
from typing import Any


class InputError(ValueError):
    """Bad input, described in one sentence: which column, how many rows, an example, what to do.

    Control characters of file or column names are escaped: no message can drive a terminal.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class DivergedError(InputError):
    """Training diverged: the hyper-parameters do not suit this log."""


class TooLittleData(InputError):
    """A log lacks the rows that a method trains on, such as positive outcomes."""


class MissingExtra(InputError):
    """An optional dependency is not installed; the message has the command that installs it."""


class OverlapWarning(UserWarning):
    """Much of an estimate's weight lies on pairs whose propensity leaves one arm unobserved."""


class TrainingLogWarning(UserWarning):
    """A model is measured on the log it was trained on."""


class UnfinishedWarning(UserWarning):
    """A fit ended while its validation was still improving."""


def together(sentences: list[str]) -> InputError:
    """One error for all flaws that were found, so that they can be mended at once."""
    if len(sentences) == 1:
        return InputError(sentences[0])
    numbered = " ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences, 1))
    return InputError(f"{len(sentences)} flaws were found: {numbered}")


def missing_extra(module: str, extra: str, alternative: str = "") -> MissingExtra:
    """The error for an optional module that is not installed: the commands, and what else would do."""
    return MissingExtra(
        f"'{module}' is not installed; run pip install \"taurank[{extra}]\" "
        f'(from a checkout: pip install ".[{extra}]"){alternative and f", or {alternative}"}.'
    )


def plural(number: int, noun: str) -> str:
    """ "1 row", "1,234 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show(scalar: Any) -> str:
    """A value as it appears in a message: short, and text in quotes."""
    try:
        value = scalar.as_py() if hasattr(scalar, "as_py") else scalar
        text = repr(value) if isinstance(value, (str, bytes)) else str(value)
    except (ValueError, OverflowError, TypeError):  # a date beyond the year 9999, an integer of 5,000 digits
        text = f"a {getattr(scalar, 'type', type(scalar).__name__)} out of range"
    return printable(text if len(text) <= 60 else text[:57] + "...")


def first_line(error: BaseException) -> str:
    """The first line of another library's error, short enough to fit inside a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:160]


def printable(text: str, allowed: str = "\n\t") -> str:
    """``text`` without control characters: a column name must not move the cursor or color the terminal."""
    hidden = {char for char in text if unicodedata.category(char) in _HIDDEN and char not in allowed}
    # so that escaped JSON remains JSON
    return text.translate({ord(c): "\\u007f" if c == "\x7f" else json.dumps(c)[1:-1] for c in hidden})


# control characters, invisible ones, which include those that reverse text, lone surrogates, and line separators
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
