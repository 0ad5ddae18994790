"""Rules of a surface. All of them are settled before the draw, so that every π stays exact.

Blocked items and pins are not eligible; a frequency cap takes away what a user's earlier lists have shown often
enough; a cap of categories bounds the items of each (``taurank.serve.policy``). Pins stand in front of every list,
also of the hold-out's, and are not measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

Items = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")], ...],
    Field(max_length=1000),
]


class Rules(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What a surface never shows, always shows, and shows only so often."""

    blocked: Annotated[Items, Field(description="Items that are never shown.")] = ()
    pins: Annotated[Items, Field(description="Items in front of every list, outside the measurement.")] = ()
    per_category: Annotated[
        int, Field(ge=0, le=1000, description="At most so many items of a category in a list; 0: any number.")
    ] = 0
    max_shown: Annotated[
        int,
        Field(ge=0, le=100, description="A user's lists show an item at most so often; 0: any number of times ..."),
    ] = 0
    within: Annotated[int, Field(ge=2, le=100, description="... within so many periods.")] = 7

    @property
    def compared(self) -> dict[str, Any]:
        """The settings that a running comparison does not survive: those that decide how much a model can cause."""
        return self.model_dump(exclude={"blocked", "pins"})

    @property
    def never_drawn(self) -> tuple[str, ...]:
        return (*self.blocked, *self.pins)


def shown_often(lists: Iterable[Sequence[str]], times: int) -> list[str]:
    """The items that these lists have shown at least so often."""
    counts = Counter(item for shown in lists for item in shown)
    return sorted(item for item, count in counts.items() if count >= times)
