"""Rows 38 and 39: the broker has no disk or memory left. Who publishes is not ready and says why; nothing is lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.faults.conftest import Deploy
from tests.faults.deployment import Deployment
from tests.support.servers import PrivateNode
from tests.support.servers.ports import free_ports
from tests.support.traffic import until

Record = Callable[[str, Any, float], None]
SERVICES = ("persister", "orchestrator")
CONFIRMED_BEFORE = 50


@dataclass(frozen=True, slots=True)
class Alarm:
    """The broker runs out of something; the arguments of rabbitmqctl that make it think so, and think better of it."""

    of: str
    raising: tuple[str, ...]
    ending: tuple[str, ...]


async def readiness(port: int) -> tuple[int, str]:
    """Status and text of /readyz; 0 while nobody listens."""

    def ask() -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    return await asyncio.to_thread(ask)


def says(port: int, status: int, *words: str) -> Callable[[], Awaitable[bool]]:
    """Return a condition: /readyz has this status, and names one of these reasons."""

    async def holds() -> bool:
        found, text = await readiness(port)
        return found == status and (not words or any(word in text for word in words))

    return holds


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_a_disk_alarm_under_load(
    rabbit_node: PrivateNode, postgres_url: str, deploy: Deploy, record: Record
) -> None:
    """Matrix row 38: as much must be free as no disk has."""
    alarm = Alarm("disk", ("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "50MB"))
    await raise_and_end(alarm, rabbit_node, postgres_url, deploy, record)


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_a_memory_alarm_under_load(
    rabbit_node: PrivateNode, postgres_url: str, deploy: Deploy, record: Record
) -> None:
    """Matrix row 39: less may be used than any node needs."""
    command = "set_vm_memory_high_watermark"
    alarm = Alarm("memory", (command, "0.00000001"), (command, "0.6"))
    await raise_and_end(alarm, rabbit_node, postgres_url, deploy, record)


async def raise_and_end(
    alarm: Alarm, rabbit_node: PrivateNode, postgres_url: str, deploy: Deploy, record: Record
) -> None:
    """Raise the alarm under load, see who is ready and what is confirmed; end it, drain, check."""
    chance = random.Random(39)
    async with deploy(rabbit_node.url(), postgres_url) as deployment:
        await deployment.open_session()
        ports = {name: free_ports(1)[0] for name in SERVICES}
        for name, port in ports.items():
            await deployment.serve(name, APC_HEALTH_PORT=str(port), APC_BROKER_TIMEOUT="PT4S")
            await until(says(port, 200), 60)
        async with deployment.working(), deployment.sending(chance):
            await until(deployment.confirms.reach(CONFIRMED_BEFORE))
            await asyncio.to_thread(rabbit_node.ctl, *alarm.raising)
            began = monotonic()
            await until(says(ports["orchestrator"], 503, "the broker blocks publishers", "is not held"))
            print(f"\nthe gate is not ready {monotonic() - began:.1f} s after the alarm")
            await until(failures_after(deployment, 0))
            confirmed = deployment.confirms.count
            await until(failures_after(deployment, deployment.confirms.failures))
            assert deployment.confirms.count == confirmed, "a confirm during the alarm"
            # It only consumes and acknowledges: nothing blocks it.
            assert (await readiness(ports["persister"]))[0] == 200
            await asyncio.to_thread(rabbit_node.ctl, *alarm.ending)
            repaired_at = monotonic()
            for port in ports.values():
                await until(says(port, 200), 60)
            print(f"all are ready {monotonic() - repaired_at:.1f} s after its end")
            await until(deployment.confirms.reach(CONFIRMED_BEFORE))
        # What was sent and not confirmed has the same id as what was sent again.
        async with deployment.working():
            await deployment.drain(90)
        await deployment.check(fenced_allowed=True)
    record(f"{alarm.of} alarm", deployment, repaired_at)


def failures_after(deployment: Deployment, before: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: more publishes than these have ended as unknown."""

    async def holds() -> bool:
        return bool(deployment.confirms.failures > before)

    return holds
