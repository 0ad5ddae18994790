"""The claims of the paper's section 5, and whether a run reproduces them: one declaration per claim.

A claim is declared by an id, the claim in words, the section of the paper, the experiment it needs, the criterion in
words, and the criterion itself (see `criteria` and `curves`). A claim about several datasets is not reproduced if one
of them is clearly against it, reproduced if all are clearly for it, and inconclusive otherwise. The same criteria
are applied to the paper's own printed figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

import pandas as pd

from taurank_paper.plan.names import ASSIGNMENTS, ITEMS
from taurank_paper.verdicts import criteria, curves, paper_tables
from taurank_paper.verdicts.comparison import DATASETS, Assessment, Frames
from taurank_paper.verdicts.criteria import Criterion
from taurank_paper.verdicts.curves import Curve

VERDICTS = {True: "reproduced", False: "not reproduced", None: "inconclusive"}
NOT_PRINTED = "no figures printed"


@dataclass(frozen=True)
class Claim:
    """One claim of the paper and the criterion for it."""

    id: str
    claim: str
    where: str
    experiment: str
    criterion: str
    check: Criterion

    def assess(self, frames: Frames) -> Assessment:
        """What the frames say about the claim; without the experiment it is inconclusive."""
        if self.experiment not in frames or frames[self.experiment].empty:
            return Assessment(None, "", f"The experiment {self.experiment} was not run.")
        return self.check(frames)


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its assessment.

    ``authors`` is the verdict at the authors' settings if that run is known, with its figures, and ``paper`` the
    verdict of the same criterion on the paper's printed figures.
    """

    id: str
    claim: str
    where: str
    criterion: str
    verdict: str
    reproduced: bool | None
    figures: str
    remark: str
    explanation: str
    paper: str
    authors: str = ""
    authors_figures: str = ""


def check(
    frames: Frames,
    explanations: Mapping[str, str] | None = None,
    claims: Sequence[Claim] | None = None,
    authors: Frames | None = None,
) -> list[ClaimResult]:
    """The result of every claim, in the paper's order; ``explanations`` by id go with claims not reproduced.

    ``authors`` are the tables of a run with the authors' settings, for a second answer.
    """
    printed = paper_tables.frames()
    results = [_result(one, frames, printed, explanations or {}) for one in (CLAIMS if claims is None else claims)]
    return [_with_authors(result, authors) for result in results] if authors else results


def _with_authors(result: ClaimResult, frames: Frames) -> ClaimResult:
    """The claim with its second answer; none where the experiment was not run with the authors' settings."""
    claim = next(one for one in CLAIMS if one.id == result.id)
    if claim.experiment not in frames:
        return result
    there = claim.assess(frames)
    return replace(result, authors=VERDICTS[there.reproduced], authors_figures=there.figures)


def to_frame(results: Sequence[ClaimResult]) -> pd.DataFrame:
    """One row per claim; the figures are joined, so that a row is a line of the file."""
    columns = [field.name for field in fields(ClaimResult) if field.name != "reproduced"]
    rows = [
        {
            **asdict(result),
            "figures": _one_line(result.figures),
            "authors_figures": _one_line(result.authors_figures),
            "explanation": " ".join(result.explanation.split()),
        }
        for result in results
    ]
    return pd.DataFrame(rows, columns=columns)


def _result(claim: Claim, frames: Frames, printed: Frames, explanations: Mapping[str, str]) -> ClaimResult:
    here, in_paper = claim.assess(frames), claim.assess(printed)
    return ClaimResult(
        id=claim.id,
        claim=claim.claim,
        where=claim.where,
        criterion=claim.criterion,
        verdict=VERDICTS[here.reproduced],
        reproduced=here.reproduced,
        figures=here.figures,
        remark=here.remark,
        explanation=explanations.get(claim.id, "") if here.reproduced is False else "",
        paper=VERDICTS[in_paper.reproduced] if in_paper.figures else NOT_PRINTED,
    )


def _one_line(figures: str) -> str:
    return "; ".join(line.strip() for line in figures.splitlines())


ORIGINAL, PERSONALIZED = (tuple(each for each in DATASETS if each[1] == setting) for setting in ASSIGNMENTS)
CATEGORY, PRODUCT = (tuple(each for each in DATASETS if each[0] == items) for items in ITEMS)

_BETTER = "On each dataset, clearly better in more of CP@10, CP@100 and CDCG than clearly worse."
_BEST_OF = _BETTER + " The opponent is the better of the two, metric by metric."
_OTHERS = ("ulbpr", "ulrmf", "cause")
_BIASED = ("blce", "ulbpr")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "dlce-over-blce",
        "DLCE outperforms BLCE on all four datasets: removing the bias helps.",
        "5.2, Tables 3 and 4", "comparison", _BETTER,
        criteria.outperforms(["dlce"], ["blce"], DATASETS),
    ),
    Claim(
        "dlce-over-ulbpr",
        "DLCE outperforms ULBPR on all four datasets.",
        "5.2, Tables 3 and 4", "comparison", _BETTER,
        criteria.outperforms(["dlce"], ["ulbpr"], DATASETS),
    ),
    Claim(
        "dlce-over-dlto-original",
        "DLTO scores lower than DLCE in the original setting.",
        "5.2, Tables 3 and 4", "comparison", _BETTER,
        criteria.outperforms(["dlce"], ["dlto"], ORIGINAL),
    ),
    Claim(
        "dlto-over-dlce-personalized",
        "DLTO outperforms DLCE in the personalized setting.",
        "5.2, Tables 3 and 4", "comparison", _BETTER,
        criteria.outperforms(["dlto"], ["dlce"], PERSONALIZED),
    ),
    Claim(
        "dlce-best-in-car",
        "DLCE is the best of DLTO, BLCE and DLCE in CAR, which it optimizes.",
        "5.2, Table 5", "car",
        "CAR of DLCE in category personalized is clearly below the lower one of DLTO and BLCE.",
        criteria.outperforms(["dlce"], ["dlto", "blce"], [("category", "personalized")], "car", ["CAR"]),
    ),
    Claim(
        "ulrmf-over-ulbpr-original",
        "ULRMF outperforms ULBPR in the original setting.",
        "5.2, Tables 3 and 4", "comparison", _BETTER,
        criteria.outperforms(["ulrmf"], ["ulbpr"], ORIGINAL),
    ),
    Claim(
        "ulbpr-over-ulrmf-personalized",
        "ULRMF scores lower than ULBPR in the personalized setting.",
        "5.2, Tables 3 and 4", "comparison", _BETTER,
        criteria.outperforms(["ulbpr"], ["ulrmf"], PERSONALIZED),
    ),
    Claim(
        "cause-over-both-in-category",
        "CausE outperforms both ULRMF and ULBPR in category.",
        "5.2, Table 3", "comparison", _BEST_OF,
        criteria.outperforms(["cause"], ["ulrmf", "ulbpr"], CATEGORY),
    ),
    Claim(
        "cause-not-in-product",
        "ULRMF or ULBPR outperforms CausE in product.",
        "5.2, Table 4", "comparison", _BEST_OF,
        criteria.outperforms(["ulrmf", "ulbpr"], ["cause"], PRODUCT),
    ),
    Claim(
        "dlce-mostly-over-others",
        "DLCE mostly outperforms ULBPR, ULRMF and CausE.",
        "5.2, Tables 3 and 4", "comparison",
        "Clearly better than the best of the three in more than half of the twelve comparisons (four datasets, "
        "three metrics); not reproduced if clearly worse in at least half.",
        criteria.mostly_outperforms("dlce", _OTHERS),
    ),
    Claim(
        "lead-larger-in-product",
        "The lead of DLCE is larger in product, which has more items.",
        "5.2, Tables 3 and 4", "comparison",
        "The lead is DLCE's score divided by the best score of ULBPR, ULRMF and CausE, minus 1. In original and in "
        "personalized it is clearly larger in product in more metrics than it is clearly smaller.",
        criteria.lead_larger_in_product("dlce", _OTHERS),
    ),
    Claim(
        "p10-does-not-go-with-cp10",
        "P@10 does not correlate with CP@10.",
        "5.1.3, footnote", "comparison",
        f"Spearman's rank correlation over the methods is below {criteria.CORRELATED:g} on each dataset.",
        criteria.uncorrelated("P@10", "CP@10"),
    ),
    Claim(
        "intermediate-cap-is-best",
        "An intermediate cap is best.",
        "5.3, Fig. 3", "capping",
        "On each dataset, CDCG at the best cap strictly inside the grid is clearly above CDCG at both ends.",
        curves.intermediate_cap_is_best("CDCG", DATASETS),
    ),
    Claim(
        "larger-cap-when-personalized",
        "The best cap is larger in the personalized setting.",
        "5.3, Fig. 3", "capping",
        "The cap with the best CDCG is larger than in the original setting, in category and in product, and at least "
        "one of the two settings is clearly worse with the other's cap.",
        curves.best_cap_is_larger([
            (Curve((items, "personalized"), "CDCG"), Curve((items, "original"), "CDCG")) for items in ITEMS
        ]),
    ),
    Claim(
        "cap-for-car-around-0.1",
        "For CAR the best cap is around 0.1.",
        "5.3, Fig. 4", "capping",
        "In category personalized, the cap with the lowest CAR is at most half a decade from 0.1 (one step of the "
        "grid); not reproduced if all such caps are clearly worse than the best one.",
        curves.best_cap_is_around(0.1, Curve(("category", "personalized"), "CAR")),
    ),
    Claim(
        "cap-for-car-below-cdcg",
        "For CAR the best cap is below the one for CDCG.",
        "5.3, Fig. 4", "capping",
        "In category personalized, the cap with the best CDCG is larger than the one with the lowest CAR, and at "
        "least one of the two metrics is clearly worse with the other's cap.",
        curves.best_cap_is_larger([
            (Curve(("category", "personalized"), "CDCG"), Curve(("category", "personalized"), "CAR"))
        ]),
    ),
    Claim(
        "estimators-good-in-original",
        "The estimators are good enough in the original setting.",
        "5.4, Table 6", "estimators",
        f"The median over methods and metrics of MAE / truth, at the best cap of each, is at most "
        f"{curves.GOOD_ERROR:.0%}; not reproduced from {curves.POOR_ERROR:.0%} on.",
        curves.estimator_error("original", good=True),
    ),
    Claim(
        "estimators-poor-in-personalized",
        "The estimators are poor in the personalized setting.",
        "5.4, Table 6", "estimators",
        f"The same median is at least {curves.POOR_ERROR:.0%}; not reproduced up to {curves.GOOD_ERROR:.0%}.",
        curves.estimator_error("personalized", good=False),
    ),
    Claim(
        "cap-helps-estimate-of-car",
        "A proper cap makes the estimate of CAR reliable in the personalized setting.",
        "5.4, Table 7", "estimators",
        "In category personalized, for each method, the MAE at the best cap is at most half of that without a cap; "
        "not reproduced if no cap lowers it.",
        curves.cap_helps_estimate(Curve(("category", "personalized"), "CAR")),
    ),
    Claim(
        "robust-to-unevenness",
        "DLCE outperforms the other methods for varied unevenness β.",
        "5.5, Fig. 5", "unevenness",
        "Better than the better of BLCE and ULBPR (see the first two claims) at more than half of the β and worse at "
        "none, in category and in product; not reproduced if worse at more than a quarter of the β.",
        criteria.outperforms_across_beta("dlce", _BIASED),
    ),
    Claim(
        "robust-to-misspecification",
        "DLCE outperforms BLCE and ULBPR for a wide range of misspecification ξ.",
        "5.6, Fig. 6", "misspecification",
        f"Better than the better of the two, which use no propensity, at every ξ up to {criteria.WIDE:g} on each "
        "dataset.",
        criteria.outperforms_up_to_xi("dlce", _BIASED),
    ),
    Claim(
        "works-with-estimated-propensity",
        "DLCE works if the propensity is unknown and has to be estimated.",
        "5.6", "misspecification",
        "With propensities estimated from the log, better than the better of BLCE and ULBPR on each dataset.",
        criteria.outperforms_with_estimated("dlce", _BIASED),
    ),
    Claim(
        "losses-alike",
        "The upper bound and the approximation of the loss perform alike.",
        "5.1.2", "losses",
        f"At the paper's d (200, personalized 400), each of CP@10, CP@100 and CDCG differs by no more than noise or "
        f"{curves.ALIKE:.0%}; not reproduced if most differ by more.",
        curves.losses_are_alike("logistic", "sigmoid"),
    ),
    Claim(
        "saturates-in-d",
        "Performance saturates in d: at 200 in original, at 400 in personalized.",
        "5.1.2", "losses",
        "No larger d brings a clear gain in any metric; not reproduced if one does in most.",
        curves.saturates("logistic"),
    ),
)  # fmt: skip
