"""Users in segments: a frame with one more column, a mapping, or labels in the order of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from taurank.data.ids import Ids
from taurank.errors import InputError, plural, show

Mask = npt.NDArray[np.bool_]

OTHER = "(none)"  # users without a label


def segments_of(by: Any, users: Ids) -> dict[str, Mask]:
    """The users of each label, by label in sorted order; users without one are a segment of their own."""
    labels = np.full(len(users), OTHER, dtype=object)
    ids, given = _labels(by, users)
    codes = users.encode(ids) if ids is not None else np.arange(len(users), dtype=np.int32)
    known = codes >= 0
    if ids is not None and len(np.unique(codes[known])) != np.count_nonzero(known):
        raise InputError("by names a user more than once; give one segment per user.")
    if not known.any():
        raise InputError("by names none of the users of the log.")
    labels[codes[known]] = [_text(one) for one in np.asarray(given, dtype=object)[known]]
    return {label: labels == label for label in sorted(set(labels))}


def _labels(by: Any, users: Ids) -> tuple[Any, Any]:
    """Ids and labels; ids are None for labels in the order of the catalog."""
    if isinstance(by, Mapping):
        return list(by.keys()), list(by.values())
    frame = nw.from_native(by, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        others = [name for name in frame.columns if name != "user_id"]
        if "user_id" not in frame.columns or len(others) != 1:
            raise InputError(f"by needs user_id and one more column, got {', '.join(map(str, frame.columns))[:200]}.")
        return frame["user_id"].to_arrow(), frame[others[0]].to_list()
    try:
        given = list(by)
    except TypeError as error:
        raise InputError(f"by must be a frame, a mapping or labels, got {show(by)}.") from error
    if isinstance(by, str) or len(given) != len(users):
        raise InputError(f"by needs one label per user ({plural(len(users), 'user')}), got {show(by)}.")
    return None, given


def _text(label: Any) -> str:
    missing = label is None or (isinstance(label, float) and np.isnan(label))
    return OTHER if missing else str(label)
