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

from taurank._types import Floats, Floats32
from taurank.serve import tables
from taurank.serve.models import Registry, ServedModel
from taurank.serve.policy import Policy, digest, fingerprint, stream_key
from taurank.serve.recorder import Row, Write
from taurank.serve.store import Conflict, NotFound, Store
from taurank.serve.surfaces import Surfaces

Clock = Callable[[], float]


@dataclass(frozen=True)
class Filter:
    """What a request allows: ``candidates`` (None: all items of the model) without ``exclude``."""

    candidates: Sequence[str] | None = None
    exclude: Sequence[str] = ()

    @classmethod
    def from_request(cls, candidates: Sequence[str] | None, exclude: Sequence[str]) -> Filter | None:
        if candidates is None and not exclude:
            return None
        return cls(None if candidates is None else list(dict.fromkeys(candidates)), sorted(set(exclude)))


def eligible(model: ServedModel | None, user: str, chosen: Filter | None) -> tuple[Sequence[str], Floats32]:
    """The items that compete for the slots, in a fixed order, and their scores.

    A candidate that the model does not know gets the user's lowest score: it is shown with the floor's
    probability, so that a new item collects data. Without a model all candidates are equal.
    """
    if chosen is not None and chosen.candidates is not None:
        banned = set(chosen.exclude)
        items = [item for item in chosen.candidates if item not in banned]
        if model is None:
            return items, np.zeros(len(items), np.float32)
        scores = model.scores(user)
        places = np.array([model.item_code.get(item, -1) for item in items], np.int64)
        return items, np.where(places >= 0, scores[places], scores.min(initial=np.inf)).astype(np.float32)
    if model is None:
        raise Conflict("the surface has no model yet; promote one, or send candidates.")
    if chosen is None:
        return model.items, model.scores(user)
    codes = np.delete(
        np.arange(len(model.items)), [model.item_code[item] for item in chosen.exclude if item in model.item_code]
    )
    return [model.items[code] for code in codes], model.scores(user)[codes]


class Decider:
    """Makes decisions and repeats them."""

    def __init__(self, store: Store, secret: bytes, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self._secret = secret
        self.surfaces, self.models = Surfaces(store), Registry(store)
        # one BLAS thread for the whole process: the bits of a score must not depend on the load
        self._limits = threadpool_limits(1, user_api="blas")
        self._policy = lru_cache(256)(self._read_policy)

    def decide(
        self, name: str, user: str, candidates: Sequence[str] | None = None, exclude: Sequence[str] = ()
    ) -> Write:
        """The decision of now, ready to be recorded; a decision recorded earlier in the period prevails."""
        surface, now = self.surfaces.get(name), self.clock()
        arm, period = surface.arm(self.surfaces.salt, user), surface.periods.number(now)
        chosen = Filter.from_request(candidates, exclude)
        body = None if chosen is None else json.dumps(asdict(chosen))
        key = None if body is None else fingerprint(body)
        identity = digest(b"", "decision", name, user, str(period), size=16)  # a repeated request has the same one
        row = {
            "id": identity.hex(), "surface": name, "user_id": user, "period": period, "time": now, "arm": arm,
            "model": surface.model(arm), "policy": surface.policy_id, "filter": key,
        }  # fmt: skip
        items, pi = self._draw(row, surface.policy, chosen)
        row |= {"shown": json.dumps(items), "propensities": json.dumps(pi)}
        return Write(decision=row, filter=None if body is None else {"id": key, "body": body})

    def replay(self, decision: Row) -> tuple[list[str], list[float]]:
        """The list of a stored decision, drawn again."""
        return self._draw(decision, self._policy(decision["policy"]), self._filter(decision))

    def propensities(self, decision: Row) -> tuple[Sequence[str], Floats]:
        """Every eligible item of a stored decision, shown or not, with its π; nothing if no list was drawn."""
        items, scores = self._options(decision, self._filter(decision))
        return items, self._policy(decision["policy"]).probabilities(scores)

    def propensities_for(self, decision: Row, wanted: Iterable[str]) -> dict[str, float]:
        """π of the wanted items that were eligible."""
        items, pi = self.propensities(decision)
        if not len(pi):
            return {}
        whole = decision["filter"] is None and decision["model"] is not None
        places = self.models.get(decision["model"]).item_code if whole else {item: n for n, item in enumerate(items)}
        return {item: float(pi[places[item]]) for item in wanted if item in places}

    def propensities_of(self, decision: Row, model: ServedModel, policy: Policy) -> dict[str, float]:
        """π that another model and policy would have given to the items of a stored decision."""
        items, scores = eligible(model, decision["user_id"], self._filter(decision))
        return dict(zip(items, policy.probabilities(scores).tolist(), strict=True))

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
        items, scores = self._options(row, chosen)
        pi = policy.probabilities(scores)
        key = stream_key(self._secret, row["surface"], row["user_id"], row["period"])
        shown = policy.draw(pi, key)
        best_first = shown[np.argsort(-scores[shown], kind="stable")]
        return [items[place] for place in best_first], pi[best_first].tolist()

    def _options(self, row: Row, chosen: Filter | None) -> tuple[Sequence[str], Floats32]:
        """What competes for the slots of a decision; nothing if its arm gets no list."""
        if row["arm"] == "off" or (row["arm"] == "holdout" and row["model"] is None):
            return [], np.zeros(0, np.float32)
        model = None if row["model"] is None else self.models.get(row["model"])
        return eligible(model, row["user_id"], chosen)

    def _filter(self, decision: Row) -> Filter | None:
        if decision["filter"] is None:
            return None
        query = select(tables.filters.c.body).where(tables.filters.c.id == decision["filter"])
        return Filter(**json.loads(self.store.rows(query)[0]["body"]))

    def _read_policy(self, key: str) -> Policy:
        query = select(tables.policies.c.body).where(tables.policies.c.id == key)
        return Policy(**json.loads(self.store.rows(query)[0]["body"]))
