"""The command line as tests see it: its commands, and what is left of one that has run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from taurank.cli.app import app


@dataclass(frozen=True)
class Finished:
    """What is left of a command: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def refused_with(self, text: str) -> bool:
        """Whether it is one sentence on standard error that has ``text``, and exit code 2."""
        return self.code == 2 and self.out == "" and self.err.count("\n") == 1 and text in self.err


Command = Callable[..., Finished]


def _commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for command in group.registered_commands:
        yield (*words, str(command.name)), command.callback
    for inner in group.registered_groups:
        yield from _commands(inner.typer_instance, (*words, str(inner.name)))


COMMANDS = dict(_commands(app))  # the words of every command, and its function
GROUPS = sorted({words[:depth] for words in COMMANDS for depth in range(len(words))})
