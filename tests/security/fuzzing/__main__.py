"""`make test-fuzz`: hostile messages at every kind of consumer, on all cores. Prints figures; 1 = one has failed."""

import argparse
import asyncio
import logging
import os
import secrets
import sys
from concurrent.futures import ProcessPoolExecutor
from logging import CRITICAL
from time import monotonic

import structlog
from tests.security.fuzzing.consumers import CONSUMERS
from tests.security.fuzzing.fuzz import PUBLISHER, Outcome, fuzz, fuzz_publisher

CASES_OF_A_RUN = 10_000
TOLD_EVERY = 100_000


def main() -> int:
    """Run all cases and print what became of them."""
    asked = argparse.ArgumentParser(prog="make test-fuzz", description=__doc__)
    asked.add_argument("--cases", type=int, default=1_000_000, help="over all kinds of consumers")
    asked.add_argument("--seed", default=secrets.token_hex(4), help="the same seed gives the same cases")
    asked.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = asked.parse_args()
    print(f"{given.cases:,} cases, seed {given.seed}, {given.processes} processes", flush=True)
    names = [*(kind.name for kind in CONSUMERS), PUBLISHER]
    each = -(-given.cases // len(names))
    runs = [
        (name, min(CASES_OF_A_RUN, each - start), f"{given.seed}/{start // CASES_OF_A_RUN}")
        for start in range(0, each, CASES_OF_A_RUN)
        for name in names
    ]
    began = monotonic()
    totals = {name: Outcome(name, given.seed) for name in names}
    with ProcessPoolExecutor(given.processes) as pool:
        for outcome in pool.map(run, *zip(*runs, strict=True)):
            total = totals[outcome.name]
            total.cases += outcome.cases
            total.ended += outcome.ended
            total.set_aside += outcome.set_aside
            total.problems += outcome.problems
            if outcome.problems:
                print(outcome, flush=True)
            done = sum(one.cases for one in totals.values())
            if done // TOLD_EVERY > (done - outcome.cases) // TOLD_EVERY:
                print(f"{done:,} cases after {monotonic() - began:.0f} s", flush=True)
    found = list(totals.values())
    print(*found, sep="\n")
    print(
        f"{sum(one.cases for one in found):,} cases in {monotonic() - began:.0f} s: "
        f"ended consumers {sum(one.ended for one in found)}, "
        f"set aside by the last resort {sum(one.set_aside for one in found)}, "
        f"other problems {sum(len(one.problems) for one in found)}"
    )
    return int(any(one.ended or one.set_aside or one.problems for one in found))


def run(name: str, cases: int, seed: str) -> Outcome:
    """Give one kind of consumer its cases, in a process of a pool."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    logging.disable(CRITICAL)
    if name == PUBLISHER:
        return asyncio.run(fuzz_publisher(cases, seed))
    (kind,) = (one for one in CONSUMERS if one.name == name)
    return asyncio.run(fuzz(kind, cases, seed))


if __name__ == "__main__":
    sys.exit(main())
