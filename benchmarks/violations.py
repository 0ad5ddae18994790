"""What an estimate of one period's effect is worth where a shop does what it does not expect.

    python benchmarks/violations.py --users 10000 --items 300 --weeks 8 --seeds 41 42 43

For each switch of the made-up shop: today's lists by the doubly robust estimate with the recorded chances, over the
truth (what the lists cause in all, net of what is sent back); what the checks of later effects and of categories say.
"""

from __future__ import annotations

import numpy as np

import taurank as tr
from pilot import shop_parser
from taurank.estimation.later import Effect, later_effects
from taurank.worlds.shop import SLOTS, Shop
from taurank.worlds.shop_visits import Violations

SWITCHES: dict[str, Violations] = {
    "none": Violations(),
    "delay 0.4": Violations(delay=0.4),
    "saturation 0.3": Violations(saturation=0.3),
    "replacement 0.5": Violations(replacement=0.5),
    "every visit": Violations(every_visit=True),
    "intent 1.5": Violations(intent=1.5),
    "position 0.15": Violations(position=0.15),
    "returns 0.1": Violations(returns=0.1),
}


def main() -> None:
    options = shop_parser(__doc__, 10_000, [41, 42, 43]).parse_args()
    print("| switch | truth | estimate / truth | later, per showing / now | category, per showing / now | noticed |")
    print("|---|---|---|---|---|---|")
    for name, violations in SWITCHES.items():
        ratios, truths, later, category, noticed = [], [], [], [], 0
        for seed in options.seeds:
            shop = Shop.draw(options.users, options.items, options.weeks, seed, violations)
            log, today = shop.log(), shop.today()
            metric = f"CP@{SLOTS}"
            truths.append(shop.value(today))
            ratios.append(SLOTS * tr.evaluate(today, log, [metric])[metric].mean / truths[-1])
            found = later_effects(log, shop.features())
            assert found is not None
            assert found.category is not None
            later.append(_relative(found.later, found.by_lag[0]))
            category.append(_relative(found.category, found.by_lag[0]))
            noticed += bool(found.sentences)
        print(
            f"| {name} | {np.mean(truths):.3f} | {np.mean(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) | "
            f"{np.mean(later):+.2f} | {np.mean(category):+.2f} | {noticed} of {len(options.seeds)} |",
            flush=True,
        )


def _relative(effect: Effect, now: Effect) -> float:
    return effect.mean / now.mean


if __name__ == "__main__":
    main()
