"""A world with known effects shops at a real server; compare what the service says with the truth.

    python examples/closed_loop [--users 1500] [--periods 20] [--seed 0] [--port 0] [--stay]

The learner was chosen by the truth of this world: it shows that the loop works, not which learner is best.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from closed_loop.over_http import HEADING, line, simulate
from closed_loop.simulate import Scenario


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--users", type=int, default=1500, help="users of the simulated world (1500)")
    options.add_argument("--periods", type=int, default=20, help="days to simulate (20)")
    options.add_argument("--seed", type=int, default=0, help="random seed (0)")
    options.add_argument("--port", type=int, default=0, help="port of the server; 0 takes a free one")
    options.add_argument("--stay", action="store_true", help="keep the dashboard open at the end")
    chosen = options.parse_args()
    scenario = Scenario(chosen.users, periods=chosen.periods, seed=chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        reports = simulate(
            folder, scenario, chosen.port, lambda report: print(line(report), flush=True),
            lambda address: print(f"dashboard: {address}\n\n{HEADING}", flush=True), chosen.stay,
        )  # fmt: skip
    covered = sum(report.covered for report in reports)
    print(f"\nTrue lift per visit: {reports[0].truth:.3f} on the first day, {reports[-1].truth:.3f} on the last.")
    print(f"The interval covered the truth on {covered} of {len(reports)} days.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
