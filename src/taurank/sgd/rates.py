"""The learning rate of every epoch.

It is a function of the number of the epoch alone, so that neither threads nor a resumed fit change a bit.
"""

from __future__ import annotations


def decayed(first: float, decay: float, epoch: int, epochs: int) -> float:
    """Eq. (rate): first · decay^(epoch / (epochs − 1)); the last epoch has the rate first · decay."""
    return first if decay == 1 or epochs == 1 else first * decay ** (epoch / (epochs - 1))
