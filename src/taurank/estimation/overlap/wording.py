"""Numbers as text: shares, fractions in words, thousands."""

from __future__ import annotations

_FRACTIONS = (
    (0.25, "a quarter"),
    (1 / 3, "a third"),
    (0.5, "half"),
    (2 / 3, "two thirds"),
    (0.75, "three quarters"),
)


def fraction(share: float) -> str:
    """A share in words where there is a word for it."""
    for value, words in _FRACTIONS:
        if abs(share - value) < 0.02:
            return words
    return percent(share)


def percent(share: float) -> str:
    if 0.0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.{0 if 0.1 <= share < 0.995 or share in (0, 1) else 1}f} %"


def number(value: float) -> str:
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
