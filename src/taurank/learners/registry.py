"""Learners by name: ours by a short one, any class by "module:Class", and the model files that name them."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

from taurank.data import storage
from taurank.data.ids import ids_from_arrays
from taurank.data.storage import Array, check_arrays
from taurank.errors import InputError, first_line
from taurank.learners.base import Learner
from taurank.learners.baselines import Popular, Random
from taurank.learners.counting import CountingBayes
from taurank.learners.empirical_bayes import EmpiricalBayes
from taurank.learners.neighbors import CUBN
from taurank.learners.pairwise import BLCE, BPR, DLCE, DLTO, ULBPR
from taurank.learners.pointwise import ULRMF, CausE

LEARNERS: dict[str, type[Learner]] = {
    learner.__name__.lower(): learner
    for learner in (Random, Popular, BPR, ULBPR, ULRMF, CausE, BLCE, DLTO, DLCE, CountingBayes, EmpiricalBayes, CUBN)
}


def learner_class(name: str | type) -> type[Learner]:
    """The class of a name: "dlce", "my_module:X" (which imports the module), or the class itself."""
    if isinstance(name, str) and ":" in name:
        return _imported(name)
    if isinstance(name, str):
        if name.lower() not in LEARNERS:
            known = f"known: {', '.join(LEARNERS)}, and classes of your own as my_module:MyClass"
            raise InputError(f"there is no learner '{name}'; {known}.")
        return LEARNERS[name.lower()]
    if not (isinstance(name, type) and issubclass(name, Learner)) or inspect.isabstract(name):
        raise InputError(f"{name!r} is not a learner; name one of {', '.join(LEARNERS)}, or a class of your own.")
    return name


def _imported(path: str) -> type[Learner]:
    module, _, qualified = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in qualified.split("."):
            target = getattr(target, part)
    except Exception as error:  # importing runs any code, which can fail in any way
        raise InputError(f"the learner '{path}' cannot be imported: {first_line(error)}.") from error
    return learner_class(target)


def load(path: str | os.PathLike[str], trust: Iterable[str] = ()) -> Learner:
    """A fitted learner from the file or folder that ``save`` wrote.

    Parameters
    ----------
    path : the file or folder
    trust : modules (or packages) that may be imported. A class that is not taurank's own must be imported, which runs
        code; one that this process has already imported needs no trust

    Raises
    ------
    InputError : if the file is damaged, not a model, or names a class of a module without trust
    """
    metadata, arrays = storage.read(path, "model")
    return from_contents(f"'{os.fspath(path)}'", metadata, arrays, trust)


def from_contents(
    origin: str, metadata: Mapping[str, Any], arrays: dict[str, Any], trust: Iterable[str] = ()
) -> Learner:
    """The learner whose ``contents`` were stored; ``origin`` is what a message calls the file."""
    name = metadata.get("learner")
    if not isinstance(name, str):
        raise InputError(f"{origin} does not say which learner it contains; save the model again.")
    kind = _class_in_file(name, origin, [trust] if isinstance(trust, str) else list(trust), metadata)
    try:
        return _restored(kind, metadata, arrays)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"{origin} is not a consistent {kind.__name__} model: {first_line(error)}; save it again."
        ) from error


def _class_in_file(name: str, origin: str, trust: list[str], metadata: Mapping[str, Any]) -> type[Learner]:
    if ":" not in name:
        if name not in LEARNERS:
            raise InputError(
                f"{origin} was written by taurank {metadata.get('taurank')} and contains a learner that this "
                "version does not know; update taurank."
            )
        return LEARNERS[name]
    if name in Learner._registered:
        return learner_class(Learner._registered[name])
    module = name.partition(":")[0]
    if not any(module == trusted or module.startswith(f"{trusted}.") for trusted in trust):
        raise InputError(
            f"{origin} contains the learner '{name}', which is not part of taurank; if you trust that module, "
            f"load it with trust=['{module}'] (--trust {module})."
        )
    return _imported(name)


def _restored(kind: type[Learner], metadata: Mapping[str, Any], arrays: dict[str, Any]) -> Learner:
    learner = kind(**metadata["hyper_parameters"])
    users, items = ids_from_arrays(metadata.get("ids"), arrays, "user_id", "item_id")
    kind_of = str(arrays["popularity"].dtype) if "popularity" in arrays else ""
    popularity = "float64" if kind_of == "float64" else "int64"  # fractions where the log had values
    schema = {"popularity": Array(popularity, ("items",), minimum=0.0), **kind.stored}
    check_arrays(arrays, schema, {**learner.get_params(), "users": len(users), "items": len(items)})
    learner.users_, learner.items_ = users, items
    learner.popularity_ = arrays.pop("popularity")
    learner._set_state(arrays, metadata)
    trained_on = metadata.get("log_fingerprint")
    learner.log_fingerprint_ = trained_on if isinstance(trained_on, str) else None
    return learner
