"""The bodies of requests and answers; FastAPI checks them and writes the OpenAPI description from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    WithJsonSchema,
)

from taurank.serve.surfaces import DEFAULT_SHARE, Version

_LATEST = 5e10  # seconds since 1970
_PRINTABLE = r"^[^\x00-\x1f\x7f]+$"


def _as_text(value: Any) -> Any:
    """Ids are text inside; integers are welcome."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_time(value: Any) -> Any:
    if not isinstance(value, (str, datetime)):
        raise ValueError("a time is text such as '2026-11-16T12:00:00Z'")
    return value


def _in_range(time: datetime) -> datetime:
    """Within these years every time has a period, and every period a date."""
    if not 0 <= time.timestamp() <= _LATEST:
        raise ValueError("a time must lie between the years 1970 and 3500")
    return time


Id = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=_PRINTABLE),
    BeforeValidator(_as_text),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 200, "pattern": _PRINTABLE}, {"type": "integer"}]}
    ),
]
PathId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_PRINTABLE)]
_YEARS = r"^(19(7[1-9]|[89]\d)|2\d{3}|3[0-4]\d{2})-"
Time = Annotated[
    AwareDatetime,
    BeforeValidator(_as_time),
    AfterValidator(_in_range),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _YEARS}),
]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,60}$")]
Items = Annotated[list[Id], Field(max_length=50_000)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RecommendRequest(Body):
    """Who asks, and where. ``candidates`` are the only items to choose from, ``exclude`` are never shown."""

    user_id: Id
    surface: Annotated[Name, Field(examples=["home"])]
    candidates: Items | None = None
    exclude: Items = []


class RecommendedItem(Body):
    item_id: str
    rank: int
    propensity: float | None  # none for a pin


class Recommendation(Body):
    """``repeated`` is true if the list was decided earlier in the period."""

    decision_id: str
    surface: str
    user_id: str
    period: str
    arm: Literal["holdout", "incumbent", "challenger", "off"]
    model: str | None
    repeated: bool
    items: list[RecommendedItem]


class Event(Body):
    """Something bought (clicked, read, …). ``event_id`` makes a repeated report harmless."""

    event_id: Id
    user_id: Id
    item_id: Id
    time: Time | None = None
    value: Annotated[float, Field(strict=True, ge=-1e15, le=1e15)] = 1.0

    def row(self, now: float) -> dict[str, Any]:
        """The row of the table; without a time it happened now."""
        return {**self.model_dump(), "time": now if self.time is None else self.time.timestamp()}


class Item(Body):
    """A row of the item table; what is not named stays as it is. A new item is available."""

    item_id: Id
    available: StrictBool = True
    until: Annotated[Time | None, Field(description="When the item stops being shown.")] = None
    category: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]*$")] | None = None


class OutcomesRequest(Body):
    events: Annotated[list[Event], Field(min_length=1, max_length=1000)]


class ItemsBody(Body):
    items: Annotated[list[Item], Field(min_length=1, max_length=10_000)]


class OutcomesAnswer(Body):
    accepted: int
    duplicates: int


class ReasonBody(Body):
    reason: Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")] = ""


class PromoteBody(ReasonBody):
    model: Version


class ChallengerBody(PromoteBody):
    share: Annotated[float, Field(ge=0.01, le=0.99)] = DEFAULT_SHARE


class SwitchBody(ReasonBody):
    enabled: StrictBool


class SettleBody(Body):
    """A time in the period that is to be settled again."""

    time: Time


class Problem(BaseModel):
    """What was wrong, in one sentence."""

    detail: str
