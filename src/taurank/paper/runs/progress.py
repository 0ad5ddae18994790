"""Progress: what is left, as a bar on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self


class Progress:
    """Counts steps. ``show`` None means: a bar on a terminal, lines in a pipe; False: silence."""

    def __init__(self, show: bool | None = None) -> None:
        self.show = show is not False
        self.bar: Any = _bar() if self.show and sys.stderr.isatty() else None
        self.task: Any = None
        self.total = self.count = 0
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def plan(self, total: int, what: str = "fits") -> None:
        """From here on, ``total`` steps are to be made."""
        self.total, self.count, self.what, self.began = total, 0, what, time.monotonic()
        if self.bar is None:
            self.say(f"{total} {what} to make")
            return
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(what, total=total, news="")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        elif self.show:
            print(text, file=sys.stderr, flush=True)

    def step(self, text: str, seconds: float | None = None, steps: int = 1) -> None:
        """One more step is done."""
        self.count += steps
        took = "" if seconds is None else f", {seconds:.1f} s"
        if self.bar is not None:
            self.bar.update(self.task, completed=self.count, news=f"{self.total - self.count} left; {text}{took}")
        else:
            self.say(f"[{self.count}/{self.total}] {text}{took}; {self._left()}")

    def _left(self) -> str:
        left = self.total - self.count
        minutes = (time.monotonic() - self.began) / max(1, self.count) * left / 60
        return f"{left} left, about {minutes:.0f} min" if left else "none left"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[news]}", markup=False))  # fmt: skip
    return Bar(*columns, console=Console(stderr=True))
