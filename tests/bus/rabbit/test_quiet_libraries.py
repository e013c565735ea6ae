"""What the AMQP libraries log of a broker that is away reaches nobody who has not asked for it."""

import subprocess
import sys

import pytest

CLIENT = """
import asyncio, logging
from datetime import timedelta
from apc_bus.errors import BusUnavailable
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings

async def main():
    settings = BusSettings(amqp_url="amqp://guest:guest@127.0.0.1:1/", connect_patience=timedelta(seconds=1))
    try:
        await connect_rabbit(settings)
    except BusUnavailable as error:
        print(error)

{before}
asyncio.run(main())
"""


@pytest.mark.parametrize(("before", "is_asked"), [("", False), ("logging.getLogger('aiormq').setLevel('ERROR')", True)])
def test_a_client_without_logging_prints_no_traceback_of_a_library(before: str, is_asked: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT.format(before=before)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "127.0.0.1:1" in done.stdout
    assert ("error when creating transport" in done.stderr) is is_asked
    assert "Traceback" not in done.stderr
