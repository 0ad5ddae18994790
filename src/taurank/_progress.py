"""The one progress bar: steps done, steps left, and the latest news, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

KNOWN = 0.005  # share of the steps after which the time left is worth a guess
ALIKE = 20  # fewer steps, such as the stages of a pilot, are too different for one


class Progress:
    """Counts steps and shows them.

    ``show`` None means: a bar on a terminal, nothing elsewhere; True also shows it elsewhere (a notebook, a pipe);
    False shows nothing. With ``lines``, what would be a bar in a pipe or a file is one plain line per step.

    >>> with Progress(show=False) as progress:
    ...     progress.begin("epochs", 50)
    ...     progress.step("loss 0.53")
    """

    hidden = False  # in this process, whatever ``show`` says: what --quiet asks for

    def __init__(self, show: bool | None = None, lines: bool = False) -> None:
        terminal = sys.stderr.isatty()
        self.show = (terminal if show is None else show) and not Progress.hidden
        self._bar: Any = _bar() if self.show and (terminal or not lines) else None
        self._task: Any = None
        self.what, self.total, self.count = "", 0, 0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """A new series of ``total`` steps, of which ``done`` are done already; replaces the series before."""
        self.what, self.total, self.count, self._began = what, total, done, time.monotonic()
        if self._bar is None:
            self.say(f"{total - done} {what} left")
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, completed=done, news="")

    def step(self, news: str = "", steps: int = 1) -> None:
        """One more step is done."""
        self.count += steps
        if self._bar is not None:
            self._bar.update(self._task, completed=self.count, news=news)
        else:
            self.say(f"[{self.count}/{self.total}] {news}; {self._left()}")

    def end(self, news: str = "") -> None:
        """No more steps follow, even if fewer than planned were made: the bar is full."""
        self.total = self.count
        if self._bar is not None:
            self._bar.update(self._task, total=max(1, self.count), completed=max(1, self.count), news=news)
        elif news:
            self.say(news)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        elif self.show:
            print(text, file=sys.stderr, flush=True)

    def _left(self) -> str:
        left = self.total - self.count
        if left <= 0:
            return "none left"
        if self.total < ALIKE or self.count < KNOWN * self.total:
            return f"{left} left"
        return f"{left} left, about {(time.monotonic() - self._began) / self.count * left / 60:.0f} min"


def _bar() -> Any:
    """Fits into 80 columns: the news takes what is left of the line and is shortened at its end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class TimeLeft(TimeRemainingColumn):
        def render(self, task: Any) -> Text:
            return Text() if task.total is None or task.total < ALIKE else super().render(task)

    news = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=12), MofNCompleteColumn(),
        TimeLeft(compact=True), TextColumn("{task.fields[news]}", markup=False, table_column=news),
    )  # fmt: skip
    return Bar(*columns, console=Console(stderr=True), expand=True)
