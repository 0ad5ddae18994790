"""Attack taurank for as long as one likes, and count what happened.

``python tests/torture --seconds 100 --seed 0`` shares the seconds among the attacks and prints one line for each:
how often it was tried, what was refused with our own error, what was accepted, and every violation of what
``docs/reliability.md`` promises. The same seed tries the same things; without one a fresh seed is drawn and printed.
Exit code 1 if anything was violated.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # "python tests/torture" does not know the folder above

from torture.faults import faults
from torture.files import archives, catalogs, logs
from torture.processes import forks, interrupts, killed_fits, killed_searches, killed_writes
from torture.tally import Attack, Tally

ATTACKS: dict[str, Attack] = {
    "mutated logs": logs,
    "crafted catalogs": catalogs,
    "crafted archives": archives,
    "interrupts": interrupts,
    "killed fits": killed_fits,
    "killed searches": killed_searches,
    "killed writes": killed_writes,
    "forks and threads": forks,
    "faults of a service": faults,
}


LEAST = 3.0  # seconds for an attack


def main() -> int:
    options = _options()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}")
    wanted = {name: attack for name, attack in ATTACKS.items() if options.only in name}
    print(f"{'attack':<20}{'tried':>9}{'refused':>9}{'accepted':>9}{'violations':>11}{'seconds':>9}")
    tallies: list[Tally] = []
    end = time.monotonic() + options.seconds
    for name, attack in wanted.items():
        share = (end - time.monotonic()) / (len(wanted) - len(tallies))  # others may have taken longer
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            tally = attack(Path(folder), seed, max(LEAST, share))
        tallies.append(tally)
        _show(name, tally)
    return int(any(tally.violations for tally in tallies))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="time for all attacks together")
    parser.add_argument("--seed", type=int, help="the same seed tries the same things")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    return parser.parse_args()


def _show(name: str, tally: Tally) -> None:
    counts = f"{tally.tried:>9,}{tally.refused:>9,}{tally.accepted:>9,}{len(tally.violations):>11,}"
    print(f"{name:<20}{counts}{tally.seconds:>9.0f}", flush=True)
    for words in tally.notes:
        print(f"    {words}")
    for violation in tally.violations[:10]:
        print(f"    violated: {violation}")


if __name__ == "__main__":
    sys.exit(main())
