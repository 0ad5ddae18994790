"""Several channels of recommendation in one table, a mailer and a display, and the log of each.

The effect of a channel is that of recommending by this channel against not doing so, with the other channels as they
happened: they are treated as background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taurank.data.log import Log
from taurank.data.tables import to_arrow
from taurank.errors import InputError, plural, show

if TYPE_CHECKING:
    import pandas as pd


class Channels(dict[str, Log]):
    """A log for each channel, all with the same catalog; make one with ``from_frame``."""

    @classmethod
    def from_frame(cls, frame: Any, users: Any = None, items: Any = None, times: Any = None) -> Channels:
        """From the columns of a log and ``channel``: one row per cell and channel.

        A row whose channel is missing is an outcome without any recommendation. In the log of a channel, a cell that
        was only recommended by other channels is untreated and keeps its outcome; its propensity by this channel is
        not recorded (``taurank.propensity.estimate`` fills it in).
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
        background = rows[rows["outcome"] == 1].drop_duplicates(cell).assign(treated=0)
        if "propensity" in background:
            background["propensity"] = np.nan
        logs = {}
        for name in names:
            mine = rows[channels == name]
            others = ~pd.MultiIndex.from_frame(background[cell]).isin(pd.MultiIndex.from_frame(mine[cell]))
            logs[name] = Log.from_frame(pd.concat([mine, background[others]]), *ids)
        return cls(logs)

    def __missing__(self, channel: str) -> Log:
        raise InputError(f"there is no channel '{channel}'; known: {', '.join(self)}.")
