"""The words of the experiments, each defined once."""

from __future__ import annotations

from collections.abc import Mapping

# the paper's experiments; an experiment of one's own is of one of these kinds
KINDS = ("statistics", "comparison", "car", "capping", "estimators", "unevenness", "misspecification", "losses")
PRESETS = ("smoke", "quick", "full", "authors")
ITEMS = ("category", "product")
ASSIGNMENTS = ("original", "personalized")  # how recommendations were assigned
PROPENSITIES = ("recorded", "estimated")  # which propensities a learner sees
LIMITS = ("truth", "ten_weeks")  # rankings computed from the world itself, beside the learners

# what each kind of experiment varies, beside datasets and methods
VARIES: Mapping[str, tuple[str, ...]] = {
    "capping": ("cap",), "estimators": ("cap",), "unevenness": ("beta",), "misspecification": ("xi",),
    "losses": ("loss", "factors"),
}  # fmt: skip

TUNED_METRICS = ("CDCG", "CP@10", "CP@100", "CAR")  # the first is the one that hyper-parameters are tuned for

# tables and files that a run writes itself; an experiment of this name would overwrite them
RESERVED = (
    "run", "report", "search", "tuned", "verdicts", "cache", "tuning", "statistics_brier", "statistics_density",
    "comparison_targets", "comparison_curves", "tables", "authors",
)  # fmt: skip


def causal(metric: str) -> str:
    """The metric that a metric is chosen by: P@10 is reported of the model that is best in CP@10."""
    return metric if metric.startswith("C") else f"C{metric}"
