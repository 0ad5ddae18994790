"""Counters in Prometheus' text format, one set per process."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter

_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_HELP = {
    "taurank_requests_total": "Requests by route and status.",
    "taurank_decisions_total": "Decisions recorded, by surface and arm.",
    "taurank_repeated_total": "Requests answered with an earlier decision of the period.",
    "taurank_outcomes_total": "Outcome events, new or duplicate.",
}


class Metrics:
    """What this process has counted; with several workers each has its own ``process`` label."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[tuple[str, str], ...]]] = {name: Counter() for name in _HELP}
        self._seconds: dict[str, list[float]] = {}

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        self._counts[name][tuple(labels.items())] += amount

    def request(self, route: str, status: int, seconds: float) -> None:
        self.add("taurank_requests_total", route=route, status=str(status))
        buckets = self._seconds.setdefault(route, [0.0] * (len(_EDGES) + 2))
        for place in range(bisect_left(_EDGES, seconds), len(_EDGES)):
            buckets[place] += 1
        buckets[-2] += 1
        buckets[-1] += seconds

    def text(self) -> str:
        lines: list[str] = []
        for name, help_text in _HELP.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} counter"]
            lines += [f"{name}{_labels(labels)} {count}" for labels, count in sorted(self._counts[name].items())]
        name = "taurank_request_seconds"
        lines += [f"# HELP {name} Time to answer, by route.", f"# TYPE {name} histogram"]
        for route, buckets in sorted(self._seconds.items()):
            edges = [*map(str, _EDGES), "+Inf"]
            for edge, count in zip(edges, buckets, strict=False):
                lines.append(f"{name}_bucket{_labels((('route', route), ('le', edge)))} {count:.0f}")
            lines.append(f"{name}_sum{_labels((('route', route),))} {buckets[-1]:.6f}")
            lines.append(f"{name}_count{_labels((('route', route),))} {buckets[-2]:.0f}")
        return "\n".join(lines) + "\n"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    pairs = (*labels, ("process", str(os.getpid())))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
