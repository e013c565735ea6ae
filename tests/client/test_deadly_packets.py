"""A packet that kills the process of a whole system: it alone is set aside, and the next start goes on."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from apc_bus.last_resort import ATTEMPTS

ROOT = Path(__file__).parents[2]
MOST_STARTS = 3 + ATTEMPTS
DEAD = "SELECT recipient, metadata ->> 'error' AS reason FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED'"


@pytest.mark.long
def test_a_packet_that_kills_the_process_is_set_aside_alone(postgres_url: str, tmp_path: Path) -> None:
    """Twice with its neighbours, of its agent and of another one, and then alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("APC_")}
    environment |= {"APC_DATABASE_URL": postgres_url, "APC_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ends: list[int] = []
    said = ""
    while not ends or (ends[-1] == -signal.SIGKILL and len(ends) < MOST_STARTS):
        done = subprocess.run(
            [sys.executable, "-m", "tests.client.deadly_desk"],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        ends.append(done.returncode)
        said += done.stdout[-3000:] + done.stderr[-3000:]
    assert ends[-1] == 0, f"{ends} {said}"
    became = json.loads(done.stdout.splitlines()[-1])
    assert (became["a"], became["b"]) == ("a", "b")
    assert "HANDLER_FAILED" in became["poison"]
    assert asyncio.run(dead_letters(postgres_url)) == [
        ("clerk", "set aside: it ended its consumer three times while alone")
    ]


async def dead_letters(url: str) -> list[tuple[str, str]]:
    """Return to whom a delivery has died, and why."""
    connection = await asyncpg.connect(url)
    try:
        return [(row["recipient"], row["reason"]) for row in await connection.fetch(DEAD)]
    finally:
        await connection.close()
