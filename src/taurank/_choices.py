"""What may be chosen by name: each list once, for the functions that take it and for the command line.

It imports nothing else, so that a command answers ``--help`` at once.
"""

from __future__ import annotations

from typing import Literal

Combine = Literal["same", "any", "first", "max"]  # the propensity of a cell with several impressions
Nulls = Literal["refuse", "drop"]
Incomplete = Literal["drop", "keep"]  # a first or last period that the tables cover in part
PropensityKind = Literal["exposure", "additive"]
SlatePolicy = Literal["softmax", "epsilon-greedy-slots", "epsilon-greedy-slates"]
Recorded = Literal["propensity", "nothing"]  # of a made-up shop's draws
UnknownUsers = Literal["raise", "warn", "popular"]
UnknownItems = Literal["raise", "warn", "drop"]
