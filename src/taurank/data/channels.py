"""Several channels of recommendation in one table, a mailer and a display, and the log of each.

The effect of a channel is that of recommending by this channel against not doing so, with the other channels as they
happened: they are treated as background. Channels that exclude each other, such as the arms of an experiment, are
each compared with no recommendation at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taurank._checks import check_number
from taurank.data.eligibility import Eligibility
from taurank.data.log import Log
from taurank.data.tables import to_arrow
from taurank.errors import InputError, plural, show

if TYPE_CHECKING:
    import pandas as pd


class Channels(dict[str, Log]):
    """A log for each channel, all with the same catalog; make one with ``from_frame``."""

    @classmethod
    def from_frame(
        cls, frame: Any, users: Any = None, items: Any = None, times: Any = None, *,
        exclusive: bool | Mapping[str, float] = False,
    ) -> Channels:  # fmt: skip
        """From the columns of a log and ``channel``: one row per cell and channel.

        In the log of a channel, a cell that was only recommended by other channels is untreated and keeps its
        outcome; its propensity by this channel is not recorded (``taurank.propensity.estimate`` fills it in).

        Parameters
        ----------
        frame : a row whose channel is missing is an outcome without any recommendation
        users, items, times : a catalog larger than what occurs, as in ``Log.read``
        exclusive : True if at a time a user gets one channel or none. The log of a channel is then about the users of
            this channel and of none, and its propensity is given these two, P(c) / (P(c) + P(none)): from the rows of
            a cell if they have the propensities of all channels, or from the shares of a randomized experiment,
            ``{"mailer": 1 / 3, "display": 1 / 3}``. Users without rows count if ``users`` names them

        Examples
        --------
        >>> import pandas as pd
        >>> rows = {"user_id": [1, 1, 2], "item_id": ["tea", "jam", "tea"], "channel": ["mail", "app", "app"]}
        >>> logs = Channels.from_frame(pd.DataFrame(rows).assign(treated=1, outcome=[1, 0, 0]))
        >>> {channel: int(log.treated.sum()) for channel, log in logs.items()}
        {'app': 2, 'mail': 1}
        """
        import pandas as pd

        rows: pd.DataFrame = to_arrow(frame).to_pandas()
        for column in ("channel", "user_id", "item_id", "treated", "outcome"):
            if column not in rows:
                raise InputError(f"the frame has no column '{column}'; it has {', '.join(map(str, rows))}.")
        cell = [name for name in ("user_id", "item_id", "time") if name in rows]
        outcomes = rows.groupby(cell)["outcome"].nunique()
        unlike = outcomes[outcomes > 1]
        if len(unlike):
            raise InputError(
                f"{plural(len(unlike), 'cell')} ({', '.join(cell)}) have rows with different outcomes, for example "
                f"{show(unlike.index[0])}; give all rows of a cell its outcome."
            )
        channels, rows = rows["channel"].astype("string"), rows.drop(columns="channel")
        names = sorted(channels.dropna().unique())
        if not names:
            raise InputError("column 'channel' has no value; name the channel of every recommendation.")
        whole = Log.from_frame(rows.drop_duplicates(cell), users, items, times)
        ids = (whole.users.values, whole.items.values, whole.times.values if whole.timed else None)
        if exclusive:
            rows = rows.assign(propensity=_conditional(rows, channels, cell, names, exclusive))
        background = rows[rows["outcome"] == 1].drop_duplicates(cell).assign(treated=0, propensity=np.nan)
        logs = {}
        for name in names:
            mine = rows[channels == name]
            others = ~pd.MultiIndex.from_frame(background[cell]).isin(pd.MultiIndex.from_frame(mine[cell]))
            mine = pd.concat([mine, background[others]])
            if isinstance(exclusive, Mapping):
                left = 1 - sum(share for other, share in exclusive.items() if other != name)
                mine = mine.assign(propensity=exclusive[name] / left)
            log = Log.from_frame(mine, *ids)
            logs[name] = _without(log, rows[(rows["treated"] == 1) & (channels != name)]) if exclusive else log
        return cls(logs)

    def __missing__(self, channel: str) -> Log:
        raise InputError(f"there is no channel '{channel}'; known: {', '.join(self)}.")


def _conditional(
    rows: pd.DataFrame, channels: pd.Series[Any], cell: list[str], names: list[str],
    exclusive: bool | Mapping[str, float],
) -> Any:  # fmt: skip
    """The propensity of each row's channel given that it was this channel or none; NaN where it is not known."""
    visit = [name for name in cell if name != "item_id"]
    shown = rows["treated"] == 1
    several = channels[shown].groupby([rows.loc[shown, name] for name in visit]).nunique()
    if (several > 1).any():
        n, example = int((several > 1).sum()), several[several > 1].index[0]
        raise InputError(
            f"{plural(n, 'user')} got several channels at one time ({', '.join(visit)}), for example "
            f"{show(example)}; channels that exclude each other cannot be shown together."
        )
    if isinstance(exclusive, Mapping):
        for name, share in exclusive.items():
            check_number(f"exclusive[{name!r}]", share, 0, 1)
        if set(exclusive) != set(names) or not 0 < sum(exclusive.values()) < 1:
            raise InputError(
                f"exclusive must name the share of every channel ({', '.join(names)}), in all less than 1: the rest "
                "is the share without any."
            )
        return np.nan
    if "propensity" not in rows:
        return np.nan
    by_cell = rows.assign(channel=channels).groupby(cell)
    known = by_cell["propensity"].transform("count") == len(names)
    others = by_cell["propensity"].transform("sum") - rows["propensity"]
    return (rows["propensity"] / (1 - others)).where(known)


def _without(log: Log, rows: pd.DataFrame) -> Log:
    user, item = log.users.encode(rows["user_id"]), log.items.encode(rows["item_id"])
    time = log.times.encode(rows["time"]) if log.timed else np.zeros(len(rows), np.int32)
    own = np.ones((log.n_users, log.n_times), np.bool_)
    own[user, time] = False
    cells = np.unique(log.catalog.cell_index(user, item, time))
    bought = int(np.count_nonzero((log.outcome == 1) & ~own[log.user, log.time]))
    users, times = np.nonzero(own)
    eligibility = Eligibility.from_positions(log.catalog, (users, times), outside=(len(cells), bought))
    return replace(log.take(own[log.user, log.time]), eligibility=eligibility)
