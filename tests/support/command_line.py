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


def _commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    for command in app.registered_commands:
        yield (str(command.name),), command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            yield (str(group.name), str(command.name)), command.callback


COMMANDS = dict(_commands())  # the words of every command, and its function
