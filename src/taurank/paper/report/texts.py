"""What the report says in words, around its tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taurank.paper.verdicts.paper_tables import WEEKS

OPENING = """\
A recommender can rank items by the purchase they get, or by the purchase that recommending them causes. The paper
learns the second from logs, without bias, and calls the method DLCE. This page runs its experiments again and says
of each claim whether it holds, with the figures."""

_PACKAGED = """\
The paper's worlds are made of {theirs} weeks of purchases, those here of {ours}. There are fewer users and items,
and the probabilities differ. So the absolute figures differ from the paper's; what can be compared is the order of
the methods and how far they are apart. The paper's figures stand beside ours for that."""
_NOT_SEARCHED = """\
The hyper-parameters of this run were searched on the packaged weeks, not on these: every verdict that compares
methods is provisional until `taurank reproduce --preset full` has searched here."""
_SAME = """\
The worlds here are made of {ours} weeks of purchases, as many as the paper's. They are drawn anew: the figures
cannot be the same to the last digit."""
_SYNTHETIC = """\
This is the smoke preset: a small synthetic world that shows that everything runs. Its figures say nothing about the
paper's claims, and the verdicts below mean nothing."""
PACKAGED_WEEKS = 53

NO_RUN = "There is no run.json: versions, seed and time of this run are not known."

_CRITERION = """\
A difference counts if it is larger than the larger of the two standard deviations over the test weeks: ▲ clearly for
the claim, ▼ clearly against it, ≈ within noise. A claim about several settings does not hold if one of them is
clearly against it, holds if all are clearly for it, and cannot be told otherwise. The same criteria, put to
the paper's own printed figures, do not confirm all of its claims either; each verdict says so{when}."""
CRITERION, CRITERION_TEXT = (_CRITERION.format(when=when) for when in (" when opened", ""))

STATISTICS = "Two worlds from the same purchases: items are product categories, or single products."
DENSITY = """\
Fig. 2: how the propensities of the purchases are spread. In the personalised setting the top items of each user are
recommended almost always: no purchase without recommendation is ever seen there."""
BRIER = """\
How well the probabilities of the earlier weeks predict the last one, by the weight w of the prior: the lower, the
better. The dot is the lowest, the dashed line the paper's weight, which is also used here."""

COMPARISON = """\
Mean over the test weeks ± standard deviation over them, by the truth; each method tuned on a validation week. The
best of the methods is bold in each column, and so is CountingBayes where it is better still.

CountingBayes is not in the paper and stands apart. It has no model of users or items: it smooths each pair's own
treated and untreated purchases towards the item's mean and ranks by the difference. It does so well here because
the truth of this semi-synthetic world is made of the pairs' own frequencies: a pair's past is the best guess of
its future, and nothing ties a user's items together beyond that. It cannot help with pairs that were never seen:
there it only knows the item's mean, the same for every user, and a new user or a large catalogue with few
purchases per pair leaves nothing else.

Two limits show how much is left. Truth ranks by the true effect; nothing can be better. What ten weeks can tell
ranks by the posterior mean of the effect, given a pair's own counts and the item's true distribution over users:
no method that treats the users of an item alike can be better with ten weeks of data.

The last table shows what four of the methods aim at: how well a ranking by the expectation of their weights does,
which is where unlimited data and a model without limits would lead them. The gap between that and the truth is bias;
the gap between a method and its aim is variance, and what its model and training cannot do."""
TARGETS = "What a method would reach with unlimited data: the bias that is left in what it aims at"
DOTS = "Tables 3 and 4 as pictures: a filled dot is a figure of this run, a hollow diamond the paper's."
OUTCOME = """\
P@10 counts purchases, CP@10 those that the recommendation caused. The paper says in a footnote that the two do not
go together and leaves P@10 out. Rank correlation over the methods:"""

CAR = """\
CAR, the causal average rank, is what DLCE and BLCE optimise; smaller is better. Every method is tuned for it."""
CAPPING = "The cap χ bounds the propensities in the weights from below: less variance, more bias."
CAP_CHARTS = "Fig. 3: CDCG of DLCE by cap; the band is the standard deviation over weeks, the ring the best cap."
CAP_CAR = "Fig. 4: the same for CAR; smaller is better."
ESTIMATORS = """\
A shop does not know the truth and has to estimate a metric from its log. Here both are known: the mean absolute
error of the estimate over the test weeks, by cap. The lowest error of a row is bold."""
ERROR_CHARTS = "The same error as a percentage of what is estimated: at 100 % the estimate says nothing."
UNEVENNESS = """\
Fig. 5: the larger β, the more the recommendations gather on what a user buys anyway. The bars are standard deviations
over weeks."""
MISSPECIFICATION = """\
Fig. 6: the learner is given propensities whose log-odds are drawn towards their mean; at ξ = 0 they are true, at
ξ = 1 all alike. BLCE and ULBPR use none and are level lines. One line is not in the paper: DLCE with propensities
estimated from the log itself."""
LOSSES = """\
Section 5.1.2: the upper bound of the local loss against its approximation, and a hinge besides, by the number d of
factors. The paper uses d = 200 in the original and 400 in the personalised settings."""


def data(run: Mapping[str, Any]) -> tuple[str, str]:
    """How the data of this run differ from the paper's, a label and a sentence or two; said once, on top."""
    if run.get("preset") == "smoke":
        return "Not the paper's data", _SYNTHETIC
    ours = _weeks(run.get("weeks"))
    elsewhere = run.get("preset") == "quick" and ours != PACKAGED_WEEKS
    started = " " + _NOT_SEARCHED if elsewhere else ""
    if ours == WEEKS:
        return "The data are as long as the paper's", _SAME.format(ours=ours) + started
    return "The data differ", _PACKAGED.format(ours=ours, theirs=WEEKS) + started


def packaged(run: Mapping[str, Any]) -> bool:
    """Whether the run is on the packaged weeks: what was found out about them is not true of others."""
    return run.get("preset") != "smoke" and _weeks(run.get("weeks")) == PACKAGED_WEEKS


def _weeks(told: object) -> int:
    """How many weeks the worlds were made of: a number, or one for each kind of items."""
    numbers = told.values() if isinstance(told, Mapping) else [told]
    return min((number for number in numbers if isinstance(number, int)), default=PACKAGED_WEEKS)


def absent(places: Sequence[str]) -> str:
    """Settings without figures, said rather than passed over."""
    return f"Missing, though the paper shows them: {'; '.join(places)}." if places else ""


def not_run(name: str) -> str:
    return f"Missing: this experiment was not run. It is made by: taurank reproduce {name}"


def judged(criterion: str, where: str, printed: str) -> str:
    """What stands behind a verdict."""
    return f"{criterion}\n\nIn the paper: section {where}. The same criterion on its printed figures: {printed}."
