"""What every learner can do: fit, score, recommend, save.

A learner is a small declaration: its hyper-parameters are the fields of a dataclass, ``learn`` puts what was
learned into attributes that end with an underscore, and everything else is here.
"""

from __future__ import annotations

import copy
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from taurank._checks import Allowed, check_instance, check_parameters
from taurank._choices import UnknownItems, UnknownUsers
from taurank._threads import one_blas_thread
from taurank._types import Codes, Floats32
from taurank.data import storage
from taurank.data.cell_table import fingerprint
from taurank.data.features import Features
from taurank.data.ids import Ids, ids_to_arrays
from taurank.data.log import Log
from taurank.data.remote import RemoteLog
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.options import Record, TrainingOptions, UpdateOptions, history_frame, takes
from taurank.learners.recommend import Fitted, Request
from taurank.learners.update import NewRows, WithNewUsers, bought_by_item, has_new_users, rows_of_new_users

if TYPE_CHECKING:
    import pandas as pd

RandomState = int | np.random.Generator | None

_SCORED_AT_ONCE = 256  # users


@dataclass(kw_only=True, eq=False)
class Learner(ABC):
    """The common part of all learners.

    A learner that fits in one pass implements ``learn`` and ``score_block``; ``stored`` declares its arrays.

    ``random_state`` is the seed: an integer (same seed, same bits), a Generator, or None for a new one.

    Examples
    --------
    >>> import taurank as tr
    >>> log = tr.World.synthetic(50, 10, random_state=0).sample(3, random_state=1).log
    >>> model = tr.CountingBayes(weight=5.0).fit(log, show_progress=False)
    >>> model.recommend(users=[7, 8], k=2, exclude=log)[["user_id", "rank"]].values.tolist()
    [[7, 1], [7, 2], [8, 1], [8, 2]]
    >>> model.score(users=[7], items=[0, 1]).shape
    (2,)
    """

    random_state: RandomState = None

    stored: ClassVar[Mapping[str, Array]] = {}  # the fitted arrays, without their underscore
    space: ClassVar[Mapping[str, Sequence[Any]]] = {}  # hyper-parameters to tune, and the values to try
    needs_propensity: ClassVar[bool] = False
    uses_features: ClassVar[bool] = False
    scores_are_effects: ClassVar[bool] = False  # per recommendation: in purchases, or in value
    allowed: ClassVar[Allowed] = {}  # the values of the hyper-parameters that a class adds
    _registered: ClassVar[dict[str, type[Learner]]] = {}  # every class by "module:qualified name"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Learner._registered[class_path(cls)] = cls

    def __post_init__(self) -> None:
        for kind in type(self).__mro__:
            check_parameters(self, vars(kind).get("allowed", {}))

    def learn(self, log: Log) -> None:
        """Learn from a log in one pass, into the attributes that ``stored`` declares."""
        raise NotImplementedError(f"{type(self).__name__} must implement learn(log).")

    @abstractmethod
    def score_block(self, user_codes: Codes) -> Floats32:
        """A fresh array (len(user_codes), n_items) with the scores of all items, in catalog order."""

    def updates_per_epoch(self, log: Log) -> int:
        """How many updates an epoch makes on this log; 0 for a learner that fits in one pass."""
        return 0

    @takes(TrainingOptions)
    def fit(self, log: Any, options: TrainingOptions) -> Self:
        """Learn from a log; ``history_`` is then a frame of the epochs.

        A learner that fits in one pass is checked once, after it. A fit that fails leaves the learner as it was.

        Parameters
        ----------
        validation : gains (truth or estimate); the result is the epoch that is best by them. By default ("auto") fits
            of several lengths are made, up to ``epochs``, and the one whose lists gather the largest effects by
            ``EmpiricalBayes`` on the same log is kept (``lengths_``), at two to three times the cost of one fit. None
            trains all epochs
        metric : what a check computes, one metric or several; the first one decides
        patience : checks without improvement that end the fit (None: never)
        checkpoint : a file for the state, from which the same call resumes to the bit-identical result; ``save``
            removes it once the model is written
        validate_every : epochs between checks (None: fifty checks in all). A check costs as much as ``evaluate``
        checkpoint_minutes : how often the state is written, and at the end
        callback : ``callback(learner, record)`` is called after every check, also without validation, and the learner
            it gets can be evaluated; whatever it raises ends the fit
        validation_users : check a random sample of so many users
        features : tables of users and items: factors are pulled toward what the features predict, and users and items
            of the catalog without any row get just that

        Raises
        ------
        DivergedError : if the hyper-parameters do not suit the log
        TooLittleData : if the log lacks rows that the method trains on, such as positive outcomes

        Warns
        -----
        UnfinishedWarning : if the validation was still improving at the end
        TrainingLogWarning : if the validation gains come from the training log
        """
        if not isinstance(log, RemoteLog):
            check_instance("log", log, Log, "Log.read or Log.from_frame")
        self._check_features(options.features)
        with self._restored_on_error():
            if isinstance(log, RemoteLog):
                self._set_catalog(log.users, log.items, log.popularity, log.fingerprint)
            else:
                self._set_catalog(log.users, log.items, bought_by_item(log), fingerprint(log))
            options.warn_of_training_log(self.log_fingerprint_)
            records = log.fit(self, options) if isinstance(log, RemoteLog) else self._train(log, options)
            self.history_ = history_frame(records, options.metrics)
        return self

    @takes(UpdateOptions)
    def update(self, log: Any, options: UpdateOptions) -> Self:
        """Learn from the rows since the fit, at a fraction of the cost of another fit.

        Learners that count add up, as a fit to all rows in which new items had no chances before. Learners that train
        factors start from those of the model. The result follows from the model, the logs and ``random_state``, and
        an update that fails leaves the learner as it was.

        Parameters
        ----------
        log : new rows only; users and items that it brings join the catalog behind the known ones
        past : the log that the model has learned from, or the latest part of it: factors are then trained on both,
            which comes closest to another fit
        epochs : for how long factors are trained (None: a tenth of a fit's)
        validation, metric, patience, show_progress, checkpoint, validate_every : as in ``fit``, but without "auto"
        checkpoint_minutes, callback, validation_users, features : as in ``fit``
        """
        check_instance("log", log, Log, "Log.read or Log.from_frame")
        self._check_features(options.features)
        rows = NewRows.of(self, log, options.past)
        with self._restored_on_error():
            self._set_catalog(rows.log.users, rows.log.items, rows.popularity(self.popularity_), rows.fingerprint)
            options.warn_of_training_log(self.log_fingerprint_)
            self.history_ = history_frame(self._update(rows, options), options.metrics)
        return self

    def fold_in(self, history: Log, *, features: Features | None = None) -> Self:
        """A copy of this learner for the users of ``history`` that appeared after the fit, learned from their rows.

        The items stay as they are, and rows about items that are not in the model are left out. A user without
        rows gets what the model expects of a user it knows nothing about. ``recommend(history=log)`` does it in one
        call; ``update(log)`` makes such users part of the model. ``features`` has the tables of known and new users
        (EmpiricalBayes alone): a user without rows then gets what the features say.
        """
        known = self.users
        check_instance("history", history, Log, "Log.read or Log.from_frame")
        rows = rows_of_new_users(known, self.items, history)
        folded = copy.copy(self)  # without the checkpoint, see __getstate__
        folded.users_ = rows.users
        if features is None:
            folded.fold(rows)
        else:
            check_instance("features", features, Features, "taurank.Features(users=frame)")
            folded.fold_featured(rows, known, features)
        return folded

    def learn_more(self, log: Log) -> None:
        """Learn from the new rows alone; the catalog has grown to theirs. Without it an update needs the past."""
        raise self._cannot("learn from new rows alone; give update the log of the fit: past=log.")

    def fold(self, log: Log) -> None:
        """Replace what was learned about users by what the rows of these users say; the items stay as they are."""
        raise self._cannot("fold in new users; update it with their rows, or recommend with unknown_users='popular'.")

    def fold_featured(self, log: Log, known: Ids, features: Features) -> None:
        """``fold`` with the features of these users and of the ``known`` ones of the model."""
        raise self._cannot("use the features of new users; leave them out, or update the model.")

    def _cannot(self, what: str) -> InputError:
        return InputError(f"{type(self).__name__} cannot {what}")

    def _train(self, log: Log, options: TrainingOptions) -> list[Record]:
        """One pass; a learner with epochs overrides it."""
        self.learn(log)
        return self._checked_once(options)

    def _update(self, rows: NewRows, options: UpdateOptions) -> list[Record]:
        """An update in one pass; a learner with epochs overrides it."""
        if rows.past is not None and type(self).learn_more is Learner.learn_more:
            self.learn(rows.all_rows())
        else:
            self.learn_more(rows.log)
        return self._checked_once(options)

    def _checked_once(self, options: TrainingOptions) -> list[Record]:
        if options.gains is None and options.callback is None:
            return []
        record = Record(1, float("nan"), 0, options.measure(self))
        if options.callback:
            options.callback(self, record)
        return [] if options.gains is None else [record]

    def _check_features(self, features: Features | None) -> None:
        if features is not None and not self.uses_features:
            raise self._cannot("use features; leave them out, or take EmpiricalBayes or a factor learner.")

    @contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """A fit that fails or is interrupted leaves the learner as it was."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _set_catalog(self, users: Ids, items: Ids, popularity: Any, mark: str | None) -> None:
        """What every fitted learner stores: the catalog, how much of each item was bought, and which log it was."""
        self.users_, self.items_, self.popularity_, self.log_fingerprint_ = users, items, popularity, mark
        self.__dict__.pop("_checkpoint", None)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn's ``clone`` expects them."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def set_params(self, **params: Any) -> Self:
        """Change hyper-parameters; a wrong one is refused and nothing changes."""
        known = self.get_params()
        if unknown := sorted(params.keys() - known.keys()):
            raise InputError(
                f"{type(self).__name__} has no hyper-parameter '{unknown[0]}'; it has {', '.join(sorted(known))}."
            )
        type(self)(**{**known, **params})
        vars(self).update(params)
        return self

    def hyper_parameters(self) -> dict[str, Any]:
        """``get_params`` as JSON can hold them; a Generator cannot be stored and becomes None."""
        result = {}
        for name, value in self.get_params().items():
            plain = value.item() if isinstance(value, np.generic) else value
            result[name] = None if isinstance(plain, np.random.Generator) else plain
            try:
                json.dumps(result[name], allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InputError(f"'{name}' of {type(self).__name__} cannot be stored in a file: {error}.") from error
        return result

    @property
    def users(self) -> Ids:
        """The users of the log it was fitted on, in order."""
        users: Ids = self._fitted("users_")
        return users

    @property
    def items(self) -> Ids:
        """The items of the log it was fitted on, in order."""
        items: Ids = self._fitted("items_")
        return items

    def score(self, users: Any, items: Any) -> Floats32:
        """The score of each pair (users[n], items[n]); one user or one item goes with all of the other."""
        return self._of_pairs(self.score_block, users, items)

    def _of_pairs(self, of_block: Callable[[Codes], Floats32], users: Any, items: Any) -> Floats32:
        """Single pairs out of blocks of users × items."""
        pairs = (self.users.encode_known(users), self.items.encode_known(items))
        if len({len(codes) for codes in pairs} - {1}) > 1:
            raise InputError(f"users ({len(pairs[0]):,}) and items ({len(pairs[1]):,}) must have the same length.")
        rows, columns = np.broadcast_arrays(*pairs)
        each, at = np.unique(rows, return_inverse=True)
        by_user = np.argsort(at, kind="stable")
        edges = np.searchsorted(at[by_user], np.arange(0, len(each) + _SCORED_AT_ONCE, _SCORED_AT_ONCE))
        result = np.empty(len(rows), np.float32)
        with one_blas_thread():
            for number, first in enumerate(range(0, len(each), _SCORED_AT_ONCE)):
                here = by_user[edges[number] : edges[number + 1]]
                block = of_block(each[first : first + _SCORED_AT_ONCE])
                result[here] = block[at[here] - first, columns[here]]
        return result

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        candidates: Any = None,
        exclude: Any = None,
        unknown_users: UnknownUsers = "raise",
        threads: int | None = None,
        *,
        unknown_items: UnknownItems = "raise",
        history: Log | None = None,
        features: Features | None = None,
        min_effect: float | None = None,
    ) -> pd.DataFrame:
        """The ``k`` best items of each user as a frame ``user_id, item_id, score, rank`` (rank from 1).

        Parameters
        ----------
        users : ids (None: all, or all of ``history``)
        k : how many items; a user may get fewer
        candidates : the only items to choose from: ids, a frame with ``item_id``, also with ``user_id`` if they
            differ between users (a user without any gets nothing), or a log (what could be shown at its last time)
        exclude : never returned: a log (what a user bought there), or a frame with ``user_id`` and ``item_id``, or
            with ``item_id`` alone (out of stock)
        unknown_users : a user that was not in the log is an error ("raise"), is left out with a warning ("warn"), or
            gets the most popular items ("popular")
        unknown_items : a candidate that was not in the log is an error ("raise"), or left out with a warning ("warn")
            or without one ("drop")
        history : a log with what is known about users that appeared after the fit
        features : their tables, see ``fold_in``
        min_effect : recommend an item only where its score is at least that, so a user for whom nothing helps gets
            nothing; scores must be effects (EmpiricalBayes, CountingBayes, CUBN)
        """
        request, wanted = self._request(
            users, k, history, features, candidates=candidates, exclude=exclude, unknown_users=unknown_users,
            unknown_items=unknown_items, threads=threads, min_effect=min_effect,
        )  # fmt: skip
        return request.frame(wanted)

    def write_recommendations(
        self, path: str | os.PathLike[str], users: Any = None, k: int = 10, **options: Any
    ) -> int:
        """``recommend`` straight into a Parquet or CSV file, in bounded memory; returns the number of rows."""
        request, wanted = self._request(users, k, **options)
        return request.write(path, request.batches(wanted))

    def _request(
        self, users: Any, k: int, history: Log | None = None, features: Features | None = None, **options: Any
    ) -> tuple[Request, Any]:
        """What is asked for, and for which users."""
        wanted = users if history is None or users is not None else history.users.values
        return Request(self._serving(history, features), k, **options), wanted

    def _serving(self, history: Log | None, features: Features | None) -> Fitted:
        """The learner, with the users of this log."""
        if features is not None and history is None:
            raise InputError("features are those of new users; give history= as well, a log with these users.")
        if history is None or not has_new_users(self.users, history):
            return self
        return WithNewUsers(self, self.fold_in(history, features=features))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Store the fitted learner as a file; ``taurank.load`` brings it back.

        A model that a cluster has fitted in shards becomes a folder, whose name has no ending. The checkpoint of its
        fit, if there was one, is removed after the model is written.
        """
        metadata, arrays = self.contents()
        stored = storage.write(path, "model", metadata, arrays)
        self._set_state({name: stored[name] for name in self._state()[0]}, metadata)
        if checkpoint := self.__dict__.pop("_checkpoint", None):
            checkpoint.remove()

    def contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a file has of a fitted learner: metadata and arrays."""
        from taurank import __version__

        self._fitted("users_")
        state, facts = self._state()
        types, ids = ids_to_arrays(self.users, self.items)
        metadata = {
            **facts,
            "learner": learner_name(type(self)),
            "taurank": __version__,
            "hyper_parameters": self.hyper_parameters(),
            "log_fingerprint": self.log_fingerprint_,
            "ids": types,
        }
        return metadata, {**ids, "popularity": self.popularity_, **state}

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What ``save`` stores of the fit: the arrays that ``stored`` declares, and metadata for JSON."""
        names = [name for name, array in self.stored.items() if not array.optional or f"{name}_" in self.__dict__]
        return {name: getattr(self, f"{name}_") for name in names}, {}

    def _set_state(self, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """The inverse: the arrays and the metadata of a file."""
        for name, array in arrays.items():
            setattr(self, f"{name}_", array)

    def _fitted(self, name: str) -> Any:
        try:
            return self.__dict__[name]
        except KeyError:
            raise InputError(f"this {type(self).__name__} is not fitted yet; call fit(log) first.") from None

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not the checkpoint, which ``save`` removes."""
        return {name: value for name, value in self.__dict__.items() if name != "_checkpoint"}


def class_path(kind: type) -> str:
    """Where a class can be imported from: "module:qualified name"."""
    return f"{kind.__module__}:{kind.__qualname__}"


def learner_name(kind: type[Learner]) -> str:
    """The name that ``learner_class`` resolves: "dlce" for ours, "my_module:X" for others."""
    is_ours = kind.__module__.startswith("taurank.learners.")
    return kind.__name__.lower() if is_ours else class_path(kind)
