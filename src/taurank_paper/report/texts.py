"""The prose of the report around its tables and charts. Prose about one run is in that run's findings.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taurank_paper.printed import WEEKS

PACKAGED_WEEKS = 53

TITLE = "Unbiased Learning for the Causal Effect of Recommendation: replication"
OPENING = """\
A recommender can rank items by the purchases they get, or by the purchases that recommending them causes. The
paper learns the second from logs, without bias, with a method called DLCE. This page repeats the experiments of its
section 5."""
MAIN_CHART = """\
CP@10, the purchases caused per recommendation in the top 10. Filled dot: this run, with a bar of ± one standard
deviation over test weeks and draws. Hollow diamond: the paper."""

_PACKAGED = """\
The paper's datasets are made of {paper} weeks of purchases, those here of {ours}. There are fewer users and
items, and the probabilities differ. Absolute figures therefore differ from the paper's; what can be compared is
the order of the methods and the size of their differences. The paper's figures are shown beside ours for that
purpose."""
_NOT_SEARCHED = """\
The hyper-parameters of this run were searched on the packaged weeks, not on these: every verdict that compares
methods is provisional until `taurank paper --preset full` has searched here."""
_SAME = """\
The datasets here are made of {ours} weeks of purchases, as many as the paper's. They are sampled independently,
so the figures cannot agree to the last digit."""
SYNTHETIC = """\
This is the smoke preset: small synthetic datasets that show that everything runs. Their figures say nothing about
the paper, so no claim is checked."""
UNKNOWN_RUN = "There is no run.json: versions, seed and time of this run are not known."

CRITERION = """\
Methods are compared in pairs by a t-test: over independent draws of the training log where there are several, else
over the test weeks of one draw. The level of 5 % is divided by the number of comparisons that all claims make. Of the
paper's own figures only mean and standard deviation are printed: there a difference counts if it is larger than the
larger of the two standard deviations. ▲ is clearly for the claim, ▼ clearly against it, ≈ within noise. A claim about
several datasets is not reproduced if one of them is clearly against it, reproduced if all are clearly for it, and
inconclusive otherwise. By the same criteria, the paper's own printed figures do not confirm all of its claims either;
each claim says so."""

STATISTICS = "Two catalogs from the same purchases: items are product categories, or single products."
DENSITY = """\
Fig. 2: distribution of the propensities of the purchases. In the personalized setting the top items of each user
are recommended almost always: a purchase of them without a recommendation is never observed."""
BRIER = """\
How well the probabilities of the earlier weeks predict the last one, by the weight w of the prior (lower is
better). The dot marks the lowest score, the dashed line the paper's weight, which is also used here."""

COMPARISON = """\
Mean ± standard deviation over the test weeks, and over the draws of the training log where there are several, by the
truth; each method is tuned on a validation week.
The best method of each column is bold, and so is CountingBayes where it is better still.

CountingBayes is not in the paper and is set apart. It has no model of users or items: it shrinks each pair's own
treated and untreated purchase rates toward the item's mean and ranks by the difference.

Two limits show how much can still be gained. Truth ranks by the true effect; nothing can be better. The ten-week
limit ranks by the posterior mean of the effect, given a pair's own counts and the item's true distribution over
users: no method that treats the users of an item alike can be better with ten weeks of data.

The population target of a method, in the last of these tables, is the result of ranking by the expectation of its
weights, which unlimited data and an unrestricted model would lead to. The gap between a target and the truth is
bias; the gap between a method and its target is variance, and what its model and training lose."""
TARGETS = "Population targets: the result of each method with unlimited data"
CONVERGENCE = """\
CDCG on the validation week by the number of updates: a comparison counts only where the curves have gone flat."""
SCORES = "CDCG as a chart; filled dot: this run, hollow diamond: the paper."
OUTCOME = """\
P@10 counts purchases, CP@10 those that the recommendation caused. The paper says in a footnote that the two do
not correlate and leaves P@10 out."""

CAR = "CAR, the causal average rank, is what DLCE and BLCE optimize; smaller is better. Every method is tuned for it."
CAPPING = "The cap χ bounds the propensities in the weights from below: less variance, more bias."
CAP_CHARTS = "Fig. 3: CDCG of DLCE by cap; the bars are ± one standard deviation."
CAP_CAR = "Fig. 4: the same for CAR; smaller is better."
ESTIMATORS = """\
In practice the truth is unknown, and a metric has to be estimated from a log. Here both are known: the mean
absolute error of the estimate over the test weeks, by cap. In
the tables, the lowest error of each row is bold."""
ERROR_CHARTS = "The errors relative to the true value: at 100 % an estimate says nothing."
UNEVENNESS = """\
Fig. 5: the larger β, the more the recommendations concentrate on what a user buys anyway. The bars are standard
deviations over weeks."""
MISSPECIFICATION = """\
Fig. 6: the learner is given propensities whose log-odds are shrunk toward their mean; at ξ = 0 they are true, at
ξ = 1 all equal. BLCE and ULBPR use none and are horizontal lines. One line is not in the paper: DLCE with
propensities estimated from the log itself."""
LOSSES = """\
Section 5.1.2: the upper bound of the local loss, its approximation, and a hinge loss, by the number d of factors.
The paper uses d = 200 in the original and 400 in the personalized setting."""


def data(record: Mapping[str, Any]) -> tuple[str, str]:
    """How the data of this run differ from the paper's: a label and a sentence or two."""
    ours = _weeks(record.get("weeks"))
    searched_elsewhere = record.get("preset") == "quick" and ours != PACKAGED_WEEKS
    label, text = (
        ("The data cover as many weeks as the paper's", _SAME) if ours == WEEKS else ("The data differ", _PACKAGED)
    )
    text = text.format(ours=ours, paper=WEEKS)
    return label, f"{text} {_NOT_SEARCHED}" if searched_elsewhere else text


def _weeks(weeks: object) -> int:
    """How many weeks the datasets were made of: a number, or one for each kind of items."""
    numbers = weeks.values() if isinstance(weeks, Mapping) else [weeks]
    return min((number for number in numbers if isinstance(number, int)), default=PACKAGED_WEEKS)
