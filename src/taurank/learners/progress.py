"""The progress bar of a fit: one line of at most 80 columns, and nothing in a pipe."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taurank.learners.checkpoints import State

Show = Callable[[State, float, bool], None]


@contextmanager
def progress(wanted: bool | None, name: str, epochs: int) -> Iterator[Show]:
    """A function that shows a state after an epoch of so many seconds, and whether it was the last one."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda state, seconds, over: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar_column = BarColumn(bar_width=14)
    text = TextColumn("{task.fields[news]}", markup=False)
    columns = (TextColumn("{task.description}"), bar_column, MofNCompleteColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name[:12], total=epochs, news="")

        def show(state: State, seconds: float, over: bool) -> None:
            total = state.epoch if over else epochs  # an early stop completes the bar
            bar.update(task, completed=state.epoch, total=total, news=_news(state, seconds))

        yield show


def _news(state: State, seconds: float) -> str:
    record = state.history[-1]
    news = f"loss {record.loss:.4g} {record.updates / max(seconds, 1e-9) / 1e6:.1f} M/s"
    return f"{news} best {abs(state.best):.4g} @{state.best_epoch}" if math.isfinite(state.best) else news
