"""Decisions: which items a user is shown on a surface in a period, and with which probabilities.

A decision depends on the surface, the user, the period, the secret, the model, the policy and the filter, and
on nothing else; ``replay`` repeats it from the stored row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import select
from threadpoolctl import threadpool_limits

from taurank._types import Floats, Floats32, Longs
from taurank.serve import tables
from taurank.serve.items import ItemTable, Stock, closed
from taurank.serve.models import Registry, ServedModel
from taurank.serve.policy import Policy, digest, fingerprint, stream_key
from taurank.serve.recorder import Row, Write
from taurank.serve.rules import shown_often
from taurank.serve.store import Conflict, NotFound, Store
from taurank.serve.surfaces import Surface, Surfaces

Clock = Callable[[], float]


@dataclass(frozen=True)
class Filter:
    """What a request and the rules allow: ``candidates`` (None: all items) without ``exclude``.

    ``items`` is the version of the item table.
    """

    candidates: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    items: int = 0

    @classmethod
    def of(cls, candidates: Sequence[str] | None, exclude: Iterable[str], items: int) -> Filter | None:
        """None if everything is allowed."""
        unique = None if candidates is None else list(dict.fromkeys(candidates))
        made = cls(unique, sorted(set(exclude)), items)
        return None if candidates is None and not made.exclude and not items else made


@dataclass(frozen=True)
class Eligible:
    """The items that compete for the slots, in a fixed order, with scores, and categories if these are capped."""

    stock: Stock
    codes: Longs
    scores: Floats32
    category: Longs | None = None

    def names(self, places: Any = slice(None)) -> list[str]:
        return [self.stock.items[code] for code in self.codes[places]]


_NOTHING = Eligible(Stock((), {}), np.zeros(0, np.int64), np.zeros(0, np.float32))


class Decider:
    """Makes decisions and repeats them."""

    def __init__(self, store: Store, secret: bytes, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self._secret = secret
        self.surfaces, self.models = Surfaces(store), Registry(store)
        # one BLAS thread for the whole process: the bits of a score must not depend on the load
        self._limits = threadpool_limits(1, user_api="blas")
        self.items = ItemTable(store)
        self.policy = lru_cache(256)(self._read_policy)
        self._stock = lru_cache(8)(self._make_stock)

    def refresh(self) -> None:
        """Read settings and items again, and lay out the items of the models in use."""
        self.surfaces.refresh()
        for surface in self.surfaces.all(fresh=False):
            for version in (surface.incumbent, surface.challenger, surface.holdout_model):
                if version is not None and version in self.models:
                    self._stock(self.models.get(version), self.surfaces.items)

    def decide(
        self, name: str, user: str, candidates: Sequence[str] | None = None, exclude: Sequence[str] = ()
    ) -> Write:
        """The decision of now, ready to be recorded; a decision recorded earlier in the period prevails."""
        surface, now = self.surfaces.get(name), self.clock()
        arm, period = surface.arm(self.surfaces.salt, user), surface.periods.number(now)
        excluded = [*exclude, *self._shown_often(surface, user, period)]
        chosen = Filter.of(candidates, excluded, self.surfaces.items)
        body = None if chosen is None else json.dumps(asdict(chosen))
        key = None if body is None else fingerprint(body)
        row = {
            "id": _identity(name, user, period), "surface": name, "user_id": user, "period": period, "time": now,
            "arm": arm, "model": surface.model(arm), "policy": surface.policy_id, "filter": key,
        }  # fmt: skip
        items, pi = self._draw(row, surface.policy, chosen)
        row |= {"shown": json.dumps(items), "propensities": json.dumps(pi)}
        return Write(decision=row, filter=None if body is None else {"id": key, "body": body})

    def listed(self, decision: Row, surface: Surface, exclude: Sequence[str]) -> list[tuple[str, float | None]]:
        """What an answer shows now: pins, which have no π, and the drawn items.

        Items that are excluded, blocked or not available by now are left out, also of a list that was drawn earlier;
        the stored decision, and so the measurement, stays as it is.
        """
        drawn = zip(json.loads(decision["shown"]), json.loads(decision["propensities"]), strict=True)
        items = [*((pin, None) for pin in surface.policy.pins), *drawn]
        gone = closed(self.items.at(self.surfaces.items), [item for item, _ in items], self.clock())
        gone |= {*exclude, *surface.policy.blocked}
        return [(item, pi) for item, pi in items if item not in gone]

    def replay(self, decision: Row) -> tuple[list[str], list[float]]:
        """The list of a stored decision, drawn again."""
        return self._draw(decision, self.policy(decision["policy"]), self._filter(decision))

    def propensities(self, decision: Row) -> tuple[Sequence[str], Floats]:
        """Every eligible item of a stored decision, shown or not, with its π; nothing if no list was drawn."""
        policy = self.policy(decision["policy"])
        options = self._options(decision, policy, self._filter(decision), self._model(decision))
        return options.names(), policy.probabilities(options.scores, options.category)

    def propensities_for(self, decision: Row, wanted: Iterable[str]) -> dict[str, float]:
        """π of the wanted items that were eligible."""
        return self.propensities_of(decision, self._model(decision), self.policy(decision["policy"]), wanted)

    def propensities_of(
        self, decision: Row, model: ServedModel | None, policy: Policy, wanted: Iterable[str]
    ) -> dict[str, float]:
        """π that a model and a policy would have given to items of a stored decision, if they were eligible."""
        options = self._options(decision, policy, self._filter(decision), model)
        pi, found = policy.probabilities(options.scores, options.category), {}
        for item in wanted:
            code = options.stock.place.get(item, -1)
            place = int(np.searchsorted(options.codes, code))
            if place < len(pi) and options.codes[place] == code:
                found[item] = float(pi[place])
        return found

    def describe(self, key: str, items: Sequence[str]) -> dict[str, Any]:
        """A stored decision with its list, and π of any ``items``."""
        rows = self.store.rows(select(tables.decisions).where(tables.decisions.c.id == key))
        if not rows:
            raise NotFound("there is no such decision.")
        propensity = self.propensities_for(rows[0], items)
        shown = {name: json.loads(rows[0][name]) for name in ("shown", "propensities")}
        asked = {item: propensity.get(item, 0.0) for item in items}
        return {**rows[0], **shown, "propensity_of": asked}

    def _draw(self, row: Row, policy: Policy, chosen: Filter | None) -> tuple[list[str], list[float]]:
        """The shown items, best score first, and their π."""
        options = self._options(row, policy, chosen, self._model(row))
        pi = policy.probabilities(options.scores, options.category)
        key = stream_key(self._secret, row["surface"], row["user_id"], row["period"])
        shown = policy.draw(pi, key, options.category)
        best_first = shown[np.argsort(-options.scores[shown], kind="stable")]
        return options.names(best_first), pi[best_first].tolist()

    def _options(self, row: Row, policy: Policy, chosen: Filter | None, model: ServedModel | None) -> Eligible:
        """What competes for the slots of a decision; nothing if its arm gets no list.

        An item that the model does not know gets the user's lowest score: it is shown with the floor's probability,
        so that a new item collects data. Without a model all candidates are equal.
        """
        if row["arm"] == "off" or (row["arm"] == "holdout" and row["model"] is None):
            return _NOTHING
        chosen = chosen or Filter()
        scores = None if model is None else model.scores(row["user_id"])
        if chosen.candidates is not None:
            stock = Stock(chosen.candidates, self.items.at(chosen.items))
            if model is not None and scores is not None:
                places = np.array([model.item_code.get(item, -1) for item in stock.items], np.int64)
                scores = np.where(places >= 0, scores[places], scores.min(initial=np.inf)).astype(np.float32)
        elif model is None or scores is None:
            raise Conflict("the surface has no model yet; promote one, or send candidates.")
        else:
            stock = self._stock(model, chosen.items)
            if new := len(stock.items) - len(scores):
                scores = np.append(scores, np.full(new, scores.min(), np.float32))
        codes = stock.open(row["time"], (*chosen.exclude, *policy.never_drawn))
        category = stock.category[codes] if policy.per_category else None
        return Eligible(stock, codes, np.zeros(len(codes), np.float32) if scores is None else scores[codes], category)

    def _model(self, decision: Row) -> ServedModel | None:
        return None if decision["model"] is None else self.models.get(decision["model"])

    def _make_stock(self, model: ServedModel, items: int) -> Stock:
        """The items of a model, and what else is in the item table."""
        states = self.items.at(items)
        return Stock((*model.items, *sorted(states.keys() - model.item_code.keys())), states)

    def _shown_often(self, surface: Surface, user: str, period: int) -> list[str]:
        """What the frequency cap of a surface takes away from a user."""
        policy = surface.policy
        if not policy.max_shown:
            return []
        earlier = [_identity(surface.name, user, period - back) for back in range(1, policy.within)]
        rows = self.store.rows(select(tables.decisions.c.shown).where(tables.decisions.c.id.in_(earlier)))
        return shown_often([json.loads(row["shown"]) for row in rows], policy.max_shown)

    def _filter(self, decision: Row) -> Filter | None:
        if decision["filter"] is None:
            return None
        query = select(tables.filters.c.body).where(tables.filters.c.id == decision["filter"])
        return Filter(**json.loads(self.store.rows(query)[0]["body"]))

    def _read_policy(self, key: str) -> Policy:
        query = select(tables.policies.c.body).where(tables.policies.c.id == key)
        return Policy(**json.loads(self.store.rows(query)[0]["body"]))


def _identity(surface: str, user: str, period: int) -> str:
    """The id of the one decision for a user in a period: a repeated request has the same one."""
    return digest(b"", "decision", surface, user, str(period), size=16).hex()
