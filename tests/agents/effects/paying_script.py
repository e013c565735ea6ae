"""A program without a bus whose tool pays: run as a process that tests kill, and that goes on when it runs again."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from tests.support.account import note

from apc_agents import EffectError, SQLiteEffectStore, once

store = SQLiteEffectStore(Path(sys.argv[1]))


@once(store, scope="run-17", lease=timedelta(milliseconds=300))
def pay(order: str) -> dict[str, int]:
    """Pay once, whatever is killed."""
    return {"receipt": note("payments", order)}


def said(order: str) -> str:
    """Return what the tool gave, or why nobody knows."""
    try:
        return str(pay(order))
    except EffectError as error:
        return type(error).__name__


if __name__ == "__main__":
    with ThreadPoolExecutor(4) as threads:
        print("|".join(sorted(set(threads.map(said, [*sys.argv[2:]] * 4)))))
