"""A verdict on each claim of the paper's section 5: holds, does not hold here, or cannot be told, with the figures.

Adding a claim is adding one declaration to CLAIMS: an id, the claim in words, where the paper makes it, the
experiment it needs, the criterion in words and the judge that applies it (see `judges`). A difference counts
if it exceeds the larger of the two standard deviations over the test weeks (see `evidence`); a claim about
several settings does not hold if one of them speaks clearly against it, holds if all speak clearly for it, and
cannot be told otherwise. The same judges look at the paper's own printed figures, where it prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from taurank.paper.verdicts import criteria, paper_tables
from taurank.paper.verdicts.comparison import Finding, Frames
from taurank.paper.verdicts.criteria import ALL, CATEGORY, ORIGINAL, PERSONALIZED, PRODUCT, Judge

WORDS = {True: "holds", False: "does not hold here", None: "cannot be told"}
NOT_PRINTED = "no figures printed"

# Why a claim does not hold on the packaged weeks: id → what was found out. Shown with that verdict only.
# "Aim" is what a method would rank by with unlimited data, in the last table of the comparison.
_FOUND = {
    "dlce-over-blce": """
        It holds in three settings and fails in product, personalised. There the two aim at nearly the same:
        with unlimited data BLCE would reach a CDCG of 3.73 and DLCE, at its cap, 3.71. The top of every user's
        list is always recommended, so there is no bias for the weights to remove. More training does not change
        the order: with 150 million updates (experiments/longer.toml) DLCE has 3.07, BLCE 3.15.
    """,
    "dlce-over-ulbpr": """
        In the original settings DLCE is over ULBPR at the top of the list, though not in CP@100. Where
        recommendations are personalised, ULBPR is over DLCE throughout, and so is plain BPR in CP@10 and CDCG.
        There a user's top items are always recommended: they are never seen without recommendation, and no
        weight can tell their effect from their sales. So little bias is left to remove: the aim of BPR, sales
        alone, has a CDCG of 1.90 (category) and 3.73 (product), that of DLCE 2.02 and 3.71; in the original
        settings these are 0.93 and 2.15 against 2.54 and 3.95. More training helps little (150 million updates:
        1.58 in category, 3.07 in product), and more data does not change the order: with fifty weeks
        (experiments/more_weeks.toml) DLCE reaches 1.65, DLTO 1.80, ULBPR 1.84. What DLCE has and DLTO has not
        are the purchases without recommendation. When personalised, those are of items far down a user's list:
        learning from them helps the average rank, which DLCE optimises (a CAR of 0.21 against 0.37), and costs
        the top.
    """,
    "dlce-over-dlto-original": """
        In category they cannot be told apart, nor can they on the paper's printed figures; in product DLTO is
        over DLCE. DLCE aims higher (a CDCG of 3.95 against 3.83 in product), but purchases without
        recommendation, which of the two it alone learns from, are few for each pair in ten weeks, and it
        overfits them: its CDCG in product is best after 19 of 57 million updates, that of DLTO at the end.
    """,
    "cause-over-both-in-category": """
        In category, original, CausE is level with ULRMF in CP@10 and behind it further down the list;
        personalised, it is behind both. Part of it is training: CausE draws cells, most of which hold no
        purchase, and the authors gave it 1,000 to 1,500 million updates. With 150 instead of 60 million its
        CP@10 in category, original, rises from 0.080 to 0.090, over ULRMF's 0.079, and personalised from 0.156
        to 0.160, still behind. The other part is that ULBPR and ULRMF do better here (0.077 to 0.184) than in
        the paper (0.051 to 0.132).
    """,
    "dlce-mostly-over-others": """
        DLCE is over the three in CP@10 of both original settings and in CDCG of category, original, where
        removing the bias pays (see DLCE over ULBPR). In the personalised settings, and in CP@100 everywhere,
        ULBPR or ULRMF, which use no propensities, are over it.
    """,
    "lead-larger-in-product": """
        Where DLCE leads at all, in CP@10 of the original settings, it leads by as much in category as in
        product. In CDCG its lead is smaller in product, where the ten weeks hold fewer purchases for each pair;
        in the personalised settings there is no lead to compare (see DLCE over ULBPR).
    """,
    "p10-does-not-go-with-cp10": """
        It holds in the original settings. Where recommendations are personalised, the shop recommends what a
        user buys anyway, and a ranking by purchases is nearly the best by effect that can be learnt from such a
        log: its aim has a CP@10 of 0.231 in category and 0.349 in product, that of DLCE 0.249 and 0.350.
    """,
    "intermediate-cap-is-best": """
        In the original settings an intermediate cap is best, but within noise of the smallest one. In the
        personalised settings the largest cap of the grid is best, in product clearly so. A larger cap takes
        weight from purchases without recommendation of items that are nearly always recommended; in these
        settings DLCE does better the less it learns from such purchases, and DLTO, which learns nothing from
        them, is better still.
    """,
    "robust-to-unevenness": """
        DLCE loses nothing as β grows: its CP@10 rises with β, as that of most others does. But ULBPR is over it
        at every β, for the reason given at DLCE over ULBPR.
    """,
    "robust-to-misspecification": """
        DLCE itself is robust: up to ξ = 0.2 it loses little in any setting, and in category, original, it stays
        over ULBPR up to ξ = 0.4. In category, personalised, the propensities hardly matter up to ξ = 0.8, but
        ULBPR is over DLCE even with the true ones; in product, original, up to ξ = 0.4, DLCE is over ULBPR in
        CP@10 and under it in CP@100, and at 0.4 in CDCG too.
    """,
    "works-with-estimated-propensity": """
        DLCE does not suffer: with estimated propensities its CDCG is a little higher than with the true ones in
        all three settings (perhaps because estimates follow what happened in the weeks at hand). It fails the
        criterion in category, personalised, where ULBPR is over DLCE with any propensities.
    """,
}
EXPLANATIONS: dict[str, str] = {claim: " ".join(words.split()) for claim, words in _FOUND.items()}


@dataclass(frozen=True)
class Claim:
    """One claim of the paper and how it is judged."""

    id: str
    claim: str
    where: str
    experiment: str
    criterion: str
    judge: Judge

    def find(self, frames: Frames) -> Finding:
        """What the frames say about it; without the experiment, nothing can be told."""
        if self.experiment not in frames or frames[self.experiment].empty:
            return Finding(None, "", f"The experiment {self.experiment} was not run.")
        return self.judge(frames)


@dataclass(frozen=True)
class Verdict:
    """A claim with what was found; ``paper`` is the same criterion's verdict on the paper's printed figures."""

    id: str
    claim: str
    where: str
    criterion: str
    verdict: str
    holds: bool | None
    figures: str
    remark: str
    explanation: str
    paper: str


def judge(frames: Frames, claims: Sequence[Claim] | None = None, explain: bool = True) -> list[Verdict]:
    """The verdict on every claim, in the paper's order; explanations belong to the real data alone."""
    printed = paper_tables.frames()
    why = EXPLANATIONS if explain else {}
    return [_verdict(claim, claim.find(frames), printed, why) for claim in (CLAIMS if claims is None else claims)]


def to_frame(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """One row per claim; lines of figures are joined, so that a row is a line of the file."""
    rows = [{**asdict(verdict), "figures": _one_line(verdict.figures)} for verdict in verdicts]
    names = [field for field in Verdict.__dataclass_fields__ if field != "holds"]
    return pd.DataFrame(rows, columns=names)


def _verdict(claim: Claim, found: Finding, printed: Frames, why: Mapping[str, str]) -> Verdict:
    theirs = claim.find(printed)
    return Verdict(
        id=claim.id,
        claim=claim.claim,
        where=claim.where,
        criterion=claim.criterion,
        verdict=WORDS[found.holds],
        holds=found.holds,
        figures=found.figures,
        remark=found.remark,
        explanation=why.get(claim.id, "") if found.holds is False else "",
        paper=WORDS[theirs.holds].removesuffix(" here") if theirs.figures else NOT_PRINTED,
    )


def _one_line(figures: str) -> str:
    return "; ".join(line.strip() for line in figures.splitlines())


_OVER = "In each setting, clearly better in more of CP@10, CP@100 and CDCG than clearly worse."
_BEST_OF = _OVER + " The opponent is the better of the two, metric by metric."
_OTHERS = ("ulbpr", "ulrmf", "cause")
_BIASED = ("blce", "ulbpr")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "dlce-over-blce",
        "DLCE is over BLCE in all four settings: removing the bias helps.",
        "5.2, Tables 3 and 4", "comparison", _OVER,
        criteria.over(["dlce"], ["blce"], ALL),
    ),
    Claim(
        "dlce-over-ulbpr",
        "DLCE is over ULBPR in all four settings.",
        "5.2, Tables 3 and 4", "comparison", _OVER,
        criteria.over(["dlce"], ["ulbpr"], ALL),
    ),
    Claim(
        "dlce-over-dlto-original",
        "DLTO is under DLCE in the original settings.",
        "5.2, Tables 3 and 4", "comparison", _OVER,
        criteria.over(["dlce"], ["dlto"], ORIGINAL),
    ),
    Claim(
        "dlto-over-dlce-personalized",
        "DLTO is over DLCE in the personalised settings.",
        "5.2, Tables 3 and 4", "comparison", _OVER,
        criteria.over(["dlto"], ["dlce"], PERSONALIZED),
    ),
    Claim(
        "dlce-best-in-car",
        "DLCE is the best of DLTO, BLCE and DLCE in CAR, which it optimises.",
        "5.2, Table 5", "car",
        "CAR of DLCE in category personalised is clearly below the lower one of DLTO and BLCE.",
        criteria.over(["dlce"], ["dlto", "blce"], [("category", "personalized")], "car", ["CAR"]),
    ),
    Claim(
        "ulrmf-over-ulbpr-original",
        "ULRMF is over ULBPR in the original settings.",
        "5.2, Tables 3 and 4", "comparison", _OVER,
        criteria.over(["ulrmf"], ["ulbpr"], ORIGINAL),
    ),
    Claim(
        "ulbpr-over-ulrmf-personalized",
        "ULRMF is under ULBPR in the personalised settings.",
        "5.2, Tables 3 and 4", "comparison", _OVER,
        criteria.over(["ulbpr"], ["ulrmf"], PERSONALIZED),
    ),
    Claim(
        "cause-over-both-in-category",
        "CausE is over both ULRMF and ULBPR in category.",
        "5.2, Table 3", "comparison", _BEST_OF,
        criteria.over(["cause"], ["ulrmf", "ulbpr"], CATEGORY),
    ),
    Claim(
        "cause-not-in-product",
        "ULRMF or ULBPR is over CausE in product.",
        "5.2, Table 4", "comparison", _BEST_OF,
        criteria.over(["ulrmf", "ulbpr"], ["cause"], PRODUCT),
    ),
    Claim(
        "dlce-mostly-over-others",
        "DLCE mostly outperforms ULBPR, ULRMF and CausE.",
        "5.2, Tables 3 and 4", "comparison",
        "Clearly better than the best of the three in more than half of the twelve comparisons (four settings, "
        "three metrics); does not hold if clearly worse in at least half.",
        criteria.mostly_over("dlce", _OTHERS),
    ),
    Claim(
        "lead-larger-in-product",
        "The lead of DLCE is larger in product, which has more items.",
        "5.2, Tables 3 and 4", "comparison",
        "The lead is DLCE's figure divided by that of the best of ULBPR, ULRMF and CausE, minus 1. In original and "
        "in personalised it is clearly larger in product in more metrics than clearly smaller; the noise is the "
        "larger of the relative standard deviations.",
        criteria.lead_larger_in_product("dlce", _OTHERS),
    ),
    Claim(
        "p10-does-not-go-with-cp10",
        "P@10 does not go with CP@10.",
        "5.1.3, footnote", "comparison",
        f"Spearman's rank correlation over the methods is below {criteria.GOES_WITH:g} in each setting.",
        criteria.apart("P@10", "CP@10"),
    ),
    Claim(
        "intermediate-cap-is-best",
        "An intermediate cap is best.",
        "5.3, Fig. 3", "capping",
        "In each setting, the best cap strictly inside the grid gives a CDCG clearly above that of both ends.",
        criteria.cap_inside("CDCG", ALL),
    ),
    Claim(
        "larger-cap-when-personalized",
        "The best cap is larger in the personalised settings.",
        "5.3, Fig. 3", "capping",
        "The cap with the best CDCG is larger than in the original setting, in category and in product, and at least "
        "one of the two settings clearly loses by taking the other's cap.",
        criteria.caps_ordered([
            (items, "personalized", "CDCG", items, "original", "CDCG") for items in paper_tables.ITEMS
        ]),
    ),
    Claim(
        "cap-for-car-around-0.1",
        "For CAR the best cap is around 0.1.",
        "5.3, Fig. 4", "capping",
        "In category personalised, the cap with the lowest CAR is at most half a decade from 0.1 (one step of the "
        "grid); does not hold if all of these are clearly worse than the best one.",
        criteria.cap_around(0.1, "CAR", ("category", "personalized")),
    ),
    Claim(
        "cap-for-car-below-cdcg",
        "For CAR the best cap is below the one for CDCG.",
        "5.3, Fig. 4", "capping",
        "In category personalised, the cap with the best CDCG is larger than the one with the lowest CAR, and at "
        "least one of the two metrics clearly loses by taking the other's cap.",
        criteria.caps_ordered([("category", "personalized", "CDCG", "category", "personalized", "CAR")]),
    ),
    Claim(
        "estimators-good-in-original",
        "The estimators are good enough in the original setting.",
        "5.4, Table 6", "estimators",
        f"The median over methods and metrics of MAE / truth, at the best cap of each, is at most "
        f"{criteria.GOOD_ERROR:.0%}; does not hold from {criteria.POOR_ERROR:.0%} on.",
        criteria.estimator_error("original", good=True),
    ),
    Claim(
        "estimators-poor-in-personalized",
        "The estimators are poor in the personalised setting.",
        "5.4, Table 6", "estimators",
        f"The same median is at least {criteria.POOR_ERROR:.0%}; does not hold up to {criteria.GOOD_ERROR:.0%}.",
        criteria.estimator_error("personalized", good=False),
    ),
    Claim(
        "cap-helps-estimate-of-car",
        "A proper cap makes the estimate of CAR reliable in the personalised setting.",
        "5.4, Table 7", "estimators",
        "In category personalised, for each method, the MAE at the best cap is at most half of that without a cap; "
        "does not hold if no cap lowers it.",
        criteria.cap_helps_estimate("CAR", ("category", "personalized")),
    ),
    Claim(
        "robust-to-unevenness",
        "DLCE is over the other methods for varied unevenness β.",
        "5.5, Fig. 5", "unevenness",
        "Over the better of BLCE and ULBPR (see the first two claims) at more than half of the β and under it at "
        "none, in category and in product; does not hold if under it at more than a quarter of the β.",
        criteria.over_at_each_beta("dlce", _BIASED),
    ),
    Claim(
        "robust-to-misspecification",
        "DLCE is over BLCE and ULBPR for a wide range of misspecification ξ.",
        "5.6, Fig. 6", "misspecification",
        f"Over the better of the two, which see no propensity, at every ξ up to {criteria.WIDE:g} in each setting.",
        criteria.over_up_to_xi("dlce", _BIASED),
    ),
    Claim(
        "works-with-estimated-propensity",
        "DLCE works if the propensity is unknown and has to be estimated.",
        "5.6", "misspecification",
        "With propensities estimated from the log, over the better of BLCE and ULBPR in each setting.",
        criteria.over_with_estimated("dlce", _BIASED),
    ),
    Claim(
        "losses-alike",
        "The upper bound and the approximation of the loss perform alike.",
        "5.1.2", "losses",
        f"At the paper's d (200, personalised 400), each of CP@10, CP@100 and CDCG differs by no more than noise or "
        f"{criteria.ALIKE:.0%}; does not hold if most differ by more.",
        criteria.losses_alike("logistic", "sigmoid"),
    ),
    Claim(
        "saturates-in-d",
        "The performance saturates in d: at 200 in original, at 400 in personalised.",
        "5.1.2", "losses",
        "No larger d brings a clear gain in any metric; does not hold if one does in most.",
        criteria.saturates("logistic"),
    ),
)  # fmt: skip
