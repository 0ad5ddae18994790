"""How long to train: fits of doubling lengths, judged by the effects that EmpiricalBayes estimates from the same log.

Too short a fit has not learned, too long a one has learned noise, and how long is right differs tenfold between logs.
It cannot be read off one fit, because the gain comes when the learning rate falls. So fits of several lengths are
made, each with its whole schedule. A posterior effect is shrunk as far as the log's own noise asks for; the fit whose
lists gather the most of it is kept. Nothing is held out: the judge is another method, with few parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from taurank._random import mix
from taurank._types import Codes
from taurank.data.features import Features
from taurank.data.ids import Catalog, Ids
from taurank.data.log import Log
from taurank.data.remote import RemoteLog
from taurank.estimation.gains import Gains
from taurank.learners.options import TrainingOptions
from taurank.learners.training import State

SHORTEST = 12  # epochs
USERS = 20_000  # whose rows the judge learns from
CELLS = 4_000_000  # that it judges: the pairs of some of these users with all items


def lengths_of(epochs: int) -> list[int]:
    """Half as many epochs as long as that is a fit at all, the shortest first: 12, 25, 50, 100, 200."""
    lengths = [epochs]
    while lengths[-1] // 2 >= SHORTEST:
        lengths.append(lengths[-1] // 2)
    return lengths[::-1]


def fits_to_make(
    epochs: int, choices: int, state: State, judged: TrainingOptions | None
) -> Iterator[tuple[int, int]]:
    """Choice and length of each fit, by what the fits before are worth; without a judge, the one plain fit."""
    if judged is None:
        yield 0, epochs
        return
    while (fit := following(epochs, choices, state.merits(judged))) is not None:
        yield fit
    state.history, state.epoch = state.best_history, len(state.best_history)


def following(epochs: int, choices: int, tried: Sequence[tuple[int, float]]) -> tuple[int, int] | None:
    """Choice and length to try after fits of these lengths with these merits; None if enough is known.

    First every choice at the middle length, then the best of them at half and at twice that length; then longer
    or shorter ones for as long as they are the best.
    """
    lengths = lengths_of(epochs)
    first = lengths[(len(lengths) - 1) // 2]
    if len(tried) < choices:
        return len(tried), first
    choice = max(range(choices), key=lambda n: tried[n][1])
    merit = dict(tried[choices:]) | {first: tried[choice][1]}
    best = max(merit.values())
    shorter = [length for length in lengths if length < min(merit)]
    longer = [length for length in lengths if length > max(merit)]
    if shorter and len(merit) == 1:
        return choice, shorter[-1]
    if longer and (merit[max(merit)] == best or max(merit) == first):
        return choice, longer[0]
    return (choice, shorter[-1]) if shorter and merit[min(merit)] == best else None


def judge(rows: Log, features: Features | None, threads: int | None) -> Gains | None:
    """Posterior effects of a sample of pairs; None if the log has one arm alone, and so no effects."""
    from taurank.learners.empirical_bayes import EmpiricalBayes  # which is a learner, too

    treated = int(np.count_nonzero(rows.treated))
    if treated in (0, rows.cells):
        return None
    model = EmpiricalBayes(random_state=0, threads=threads)
    model.fit(replace(rows, value=None), None, features=features, show_progress=False)
    judged = _some(rows.n_users, max(1, CELLS // rows.n_items))
    users = Ids(rows.users.decode(judged), rows.users.column)
    catalog = Catalog(users, rows.items, Ids(rows.times.values[:1], rows.times.column))
    user, item = np.divmod(np.arange(len(judged) * rows.n_items, dtype=np.int32), np.int32(rows.n_items))
    value = model.score_block(judged).astype(np.float64).ravel()
    return Gains(catalog, user, item, np.zeros_like(user), value, "posterior effect", timed=False, kind="effect")


def sample_of(log: Log | RemoteLog) -> Log:
    """The rows of some users; all of them, if there are not too many."""
    users = _some(log.n_users, USERS)
    if isinstance(log, RemoteLog):
        return log.rows_of(users)
    return log if len(users) == log.n_users else log.select(users=log.users.decode(users))


def _some(users: int, count: int) -> Codes:
    """At most so many users, the same in every fit: by a hash of their positions."""
    with np.errstate(over="ignore"):
        order = np.argsort(mix(np.arange(1, users + 1, dtype=np.uint64)), kind="stable")
    return np.sort(order[:count]).astype(np.int32)
