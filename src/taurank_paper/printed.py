"""What the paper prints: Tables 2-7 of Sato et al., "Unbiased Learning for the Causal Effect of Recommendation"
(RecSys 2020), as frames with the same columns as the tables of a run.

Figures 2-6 are plots without printed numbers. The paper's data cover 93 weeks of purchases. The ± is the standard
deviation over ten test weeks. Random appears once per catalog: the truth is the same in both settings.
"""

from __future__ import annotations

import pandas as pd

from taurank_paper.plan import ASSIGNMENTS, ITEMS

REFERENCE = (
    "M. Sato, S. Takemori, J. Singh, T. Ohkuma: Unbiased Learning for the Causal Effect of Recommendation. "
    "RecSys 2020"
)
WEEKS = 93
METRICS = ("CP@10", "CP@100", "CDCG")
METHODS = ("random", "popular", "bpr", "ulbpr", "ulrmf", "cause", "dlto", "blce", "dlce")

_TABLE_2 = """
category 2309  1372 0.0145 0.0101 0.153 0.4
product  2290 11331 0.0027 0.0010 0.088 0.9
"""
_QUANTITIES = ("users", "items", "treated_rate", "control_rate", "propensity", "prior_weight")

# mean and standard deviation of CP@10, CP@100, CDCG: first original, then personalized
_TABLE_3 = """
random  0.0049 0.0010 0.0045 0.0004 0.704 0.013   -      -      -      -      -     -
popular 0.0297 0.0005 0.0137 0.0005 0.904 0.018   0.0360 0.0020 0.0171 0.0008 0.923 0.023
bpr     0.0287 0.0026 0.0133 0.0009 0.892 0.023   0.1200 0.0036 0.0415 0.0009 1.387 0.028
ulbpr   0.0505 0.0021 0.0236 0.0005 1.037 0.013   0.1321 0.0037 0.0446 0.0009 1.466 0.021
ulrmf   0.0524 0.0028 0.0237 0.0006 1.043 0.015   0.1155 0.0029 0.0344 0.0010 1.292 0.016
cause   0.0797 0.0031 0.0252 0.0006 1.132 0.021   0.1692 0.0030 0.0432 0.0007 1.681 0.017
dlto    0.0825 0.0023 0.0226 0.0007 1.172 0.019   0.1476 0.0037 0.0452 0.0010 1.573 0.025
blce    0.0374 0.0025 0.0227 0.0008 0.990 0.015   0.1111 0.0034 0.0449 0.0010 1.394 0.025
dlce    0.0826 0.0026 0.0230 0.0007 1.175 0.020   0.1414 0.0033 0.0448 0.0008 1.528 0.024
"""
_TABLE_4 = """
random  0.0017 0.0002 0.0017 0.0001 1.638 0.008   -      -      -      -      -     -
popular 0.0445 0.0015 0.0198 0.0002 2.102 0.012   0.0572 0.0032 0.0253 0.0006 2.264 0.020
bpr     0.0430 0.0018 0.0203 0.0003 2.127 0.014   0.2040 0.0028 0.0775 0.0004 3.288 0.022
ulbpr   0.0604 0.0019 0.0262 0.0003 2.253 0.011   0.2627 0.0034 0.0828 0.0007 3.538 0.021
ulrmf   0.0648 0.0019 0.0285 0.0003 2.253 0.011   0.2456 0.0034 0.0769 0.0006 3.339 0.019
cause   0.0592 0.0021 0.0268 0.0002 2.285 0.012   0.2598 0.0028 0.0671 0.0005 3.375 0.018
dlto    0.0873 0.0010 0.0310 0.0002 2.402 0.009   0.2708 0.0041 0.0844 0.0006 3.625 0.024
blce    0.0518 0.0011 0.0302 0.0002 2.246 0.012   0.1980 0.0029 0.0810 0.0006 3.310 0.020
dlce    0.0899 0.0012 0.0313 0.0003 2.414 0.010   0.2671 0.0029 0.0843 0.0006 3.586 0.023
"""
# Category-Personalized
_TABLE_5 = """
dlto 0.770 0.026
blce 0.694 0.049
dlce 0.649 0.040
"""
# mean absolute errors by cap, category: first original, then personalized
_CAPS = {"original": (0.0, 0.003, 0.01, 0.03, 0.1), "personalized": (0.0, 0.01, 0.03, 0.1, 0.3)}
_TABLE_6 = """
CP@10  popular 0.0129 0.0129 0.0129 0.0129 0.0130   0.1527 0.1527 0.1527 0.1528 0.1530
CP@10  bpr     0.0110 0.0110 0.0110 0.0113 0.0131   0.1523 0.1523 0.1523 0.1524 0.1524
CP@10  ulbpr   0.0040 0.0040 0.0040 0.0044 0.0069   0.1343 0.1343 0.1343 0.1342 0.1320
CP@10  dlce    0.0063 0.0063 0.0063 0.0061 0.0150   0.1324 0.1324 0.1324 0.1324 0.1308
CP@100 popular 0.0018 0.0018 0.0016 0.0018 0.0021   0.0544 0.0544 0.0545 0.0546 0.0540
CP@100 bpr     0.0018 0.0016 0.0012 0.0010 0.0022   0.0535 0.0535 0.0535 0.0535 0.0522
CP@100 ulbpr   0.0017 0.0017 0.0018 0.0020 0.0019   0.0569 0.0569 0.0570 0.0568 0.0549
CP@100 dlce    0.0016 0.0016 0.0016 0.0018 0.0019   0.0604 0.0604 0.0604 0.0603 0.0587
CDCG   popular 0.076  0.059  0.042  0.081  0.282    2.081  2.076  2.027  1.914  1.717
CDCG   bpr     0.072  0.061  0.048  0.090  0.303    2.005  2.000  1.949  1.836  1.638
CDCG   ulbpr   0.058  0.050  0.044  0.091  0.283    1.830  1.824  1.766  1.652  1.461
CDCG   dlce    0.067  0.065  0.066  0.125  0.398    1.911  1.905  1.852  1.739  1.539
"""
_TABLE_7 = """
CAR popular 0.805 0.759 0.399 0.075 0.623
CAR dlce    0.866 0.834 0.537 0.072 0.640
"""


def frames() -> dict[str, pd.DataFrame]:
    """Every table under the name of its experiment, so that the same criteria apply to them and to ours."""
    return {"statistics": statistics(), "comparison": comparison(), "car": car(), "estimators": estimators()}


def statistics() -> pd.DataFrame:
    """Table 2, and the prior weight of section 5.1.1: items, quantity, value."""
    rows = [
        (items, quantity, float(value))
        for items, *values in _lines(_TABLE_2)
        for quantity, value in zip(_QUANTITIES, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=["items", "quantity", "value"])


def comparison() -> pd.DataFrame:
    """Tables 3 and 4: items, setting, method, metric, mean, std."""
    columns = [(setting, metric) for setting in ASSIGNMENTS for metric in METRICS]
    rows = []
    for items, table in zip(ITEMS, (_TABLE_3, _TABLE_4), strict=True):
        for method, *values in _lines(table):
            for (setting, metric), mean, std in zip(columns, values[::2], values[1::2], strict=True):
                if mean != "-":
                    rows.append((items, setting, method, metric, float(mean), float(std)))
    return pd.DataFrame(rows, columns=["items", "setting", "method", "metric", "mean", "std"])


def car() -> pd.DataFrame:
    """Table 5: items, setting, method, metric, mean, std; smaller is better."""
    rows = [
        ("category", "personalized", method, "CAR", float(mean), float(std)) for method, mean, std in _lines(_TABLE_5)
    ]
    return pd.DataFrame(rows, columns=["items", "setting", "method", "metric", "mean", "std"])


def estimators() -> pd.DataFrame:
    """Tables 6 and 7: items, setting, method, metric, cap, mae, and as truth the value in Tables 3 and 5."""
    rows = [row for table in (_TABLE_6, _TABLE_7) for line in _lines(table) for row in _errors(*line)]
    errors = pd.DataFrame(rows, columns=["items", "setting", "method", "metric", "cap", "mae"])
    key = ["items", "setting", "method", "metric"]
    truth = pd.concat([comparison(), car()])[[*key, "mean"]].rename(columns={"mean": "truth"})
    return errors.merge(truth, on=key, how="left")


def _errors(metric: str, method: str, *values: str) -> list[tuple[str, str, str, str, float, float]]:
    columns = [(setting, cap) for setting in ASSIGNMENTS for cap in _CAPS[setting]]
    present = columns[-len(values) :]  # Table 7 has the personalized setting alone
    return [
        ("category", setting, method, metric, cap, float(value))
        for (setting, cap), value in zip(present, values, strict=True)
    ]


def _lines(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]
