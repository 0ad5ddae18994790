"""Decisions: which items a user is shown on a surface in a period, and with which probabilities.

A decision depends on the surface, the user, the period, the secret, the model, the policy and the filter, and
on nothing else; ``replay`` repeats it from the stored row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from threadpoolctl import threadpool_limits

from taurank.serve import streams, tables
from taurank.serve.models import Registry, ServedModel
from taurank.serve.policy import Floats, Policy
from taurank.serve.recording import Request, Row
from taurank.serve.store import Conflict, Store
from taurank.serve.surfaces import Surface, Surfaces

Clock = Callable[[], float]


class NoModel(Conflict):
    """A surface without a model was asked for a list."""


@dataclass(frozen=True)
class Filter:
    """What a request allows: ``candidates`` (None: all items of the model) without ``exclude``."""

    candidates: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, candidates: Sequence[str] | None, exclude: Sequence[str]) -> Filter | None:
        if candidates is None and not exclude:
            return None
        return cls(None if candidates is None else tuple(dict.fromkeys(candidates)), tuple(sorted(set(exclude))))

    def to_text(self) -> str:
        return json.dumps({"candidates": self.candidates, "exclude": self.exclude})

    @classmethod
    def from_text(cls, text: str) -> Filter:
        body = json.loads(text)
        candidates = body["candidates"]
        return cls(None if candidates is None else tuple(candidates), tuple(body["exclude"]))


@dataclass(frozen=True)
class Eligible:
    """The items that compete for the slots, and their scores."""

    items: Sequence[str]
    scores: npt.NDArray[np.float32]


def eligible(model: ServedModel | None, user: str, chosen: Filter | None) -> Eligible:
    """The eligible items in a fixed order.

    A candidate that the model does not know gets the user's lowest score: it is shown with the floor's
    probability, so that a new item collects data. Without a model all candidates are equal.
    """
    if model is None:
        allowed = _candidates(chosen)
        return Eligible(allowed, np.zeros(len(allowed), np.float32))
    scores = model.scores(user)
    if chosen is None:
        return Eligible(model.items, scores)
    if chosen.candidates is None:
        banned = [model.item_code[item] for item in chosen.exclude if item in model.item_code]
        keep = np.delete(np.arange(len(model.items)), banned)
        return Eligible([model.items[code] for code in keep], scores[keep])
    items = _candidates(chosen)
    codes = np.array([model.item_code.get(item, -1) for item in items], np.int64)
    return Eligible(items, np.where(codes >= 0, scores[codes], scores.min(initial=np.inf)).astype(np.float32))


def _candidates(chosen: Filter | None) -> list[str]:
    if chosen is None or chosen.candidates is None:
        raise NoModel("the surface has no model yet; promote one, or send candidates.")
    banned = set(chosen.exclude)
    return [item for item in chosen.candidates if item not in banned]


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
    ) -> Request:
        """The decision of now, ready to be recorded; a decision recorded earlier in the period prevails."""
        surface, now = self.surfaces.get(name), self.clock()
        arm = surface.arm(self.surfaces.salt, user)
        version, chosen = surface.model(arm), Filter.of(candidates, exclude)
        items: list[str] = []
        pi: list[float] = []
        if arm not in ("off", "holdout") or version is not None:
            items, pi = self._list(surface, user, now, version, chosen)
        number = surface.period.number(now)
        body = None if chosen is None else chosen.to_text()
        key = None if body is None else streams.fingerprint(body)
        row = {
            "id": streams.decision_id(name, user, number), "surface": name, "user_id": user, "period": number,
            "time": now, "arm": arm, "model": version, "policy": surface.policy_id, "filter": key,
            "shown": json.dumps(items), "propensities": json.dumps(pi),
        }  # fmt: skip
        return Request(decision=row, filter=None if body is None else {"id": key, "body": body})

    def _list(
        self, surface: Surface, user: str, now: float, version: str | None, chosen: Filter | None
    ) -> tuple[list[str], list[float]]:
        model = None if version is None else self.models.get(version)
        key = streams.stream_key(self._secret, surface.name, user, surface.period.number(now))
        return _drawn(surface.policy, eligible(model, user, chosen), key)

    def propensities(self, decision: Row) -> tuple[Sequence[str], Floats]:
        """Every eligible item of a stored decision, shown or not, with its π; nothing if no list was drawn."""
        if decision["arm"] == "off" or (decision["arm"] == "holdout" and decision["model"] is None):
            return [], np.empty(0)
        options = self._options(decision)
        return options.items, self._policy(decision["policy"]).probabilities(options.scores)

    def propensities_of(self, decision: Row, model: ServedModel, policy: Policy) -> dict[str, float]:
        """π that another model and policy would have given to the items of a stored decision."""
        options = eligible(model, decision["user_id"], self._chosen(decision))
        return dict(zip(options.items, policy.probabilities(options.scores).tolist(), strict=True))

    def replay(self, decision: Row) -> tuple[list[str], list[float]]:
        """The list of a stored decision, drawn again."""
        if decision["arm"] == "off" or (decision["arm"] == "holdout" and decision["model"] is None):
            return [], []
        key = streams.stream_key(self._secret, decision["surface"], decision["user_id"], decision["period"])
        return _drawn(self._policy(decision["policy"]), self._options(decision), key)

    def _options(self, decision: Row) -> Eligible:
        model = None if decision["model"] is None else self.models.get(decision["model"])
        return eligible(model, decision["user_id"], self._chosen(decision))

    def _chosen(self, decision: Row) -> Filter | None:
        return None if decision["filter"] is None else self._filter(decision["filter"])

    def _read_policy(self, key: str) -> Policy:
        body = self.store.rows(select(tables.policies.c.body).where(tables.policies.c.id == key))[0]["body"]
        return Policy(**json.loads(body))

    def _filter(self, key: str) -> Filter:
        rows = self.store.rows(select(tables.filters.c.body).where(tables.filters.c.id == key))
        return Filter.from_text(rows[0]["body"])


def _drawn(policy: Policy, options: Eligible, key: np.uint64) -> tuple[list[str], list[float]]:
    """The shown items, best score first, and their π."""
    pi = policy.probabilities(options.scores)
    shown = policy.draw(pi, key)
    best_first = shown[np.argsort(-options.scores[shown], kind="stable")]
    return [options.items[place] for place in best_first], pi[best_first].tolist()
