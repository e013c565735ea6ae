"""Any bytes at every consumer of the product: it goes on, settles each message and handles the good ones behind them.

`make test-fuzz` gives them a million.
"""

import pytest
from tests.bus.rabbit.test_decoding import by_pamqp
from tests.security.fuzzing.consumers import CONSUMERS, Consumer, LogConsumer
from tests.security.fuzzing.fuzz import fuzz, fuzz_publisher

SEED = "20261126"
CASES = 10_000 // (len(CONSUMERS) + 1) + 1


@pytest.mark.parametrize("kind", CONSUMERS, ids=lambda kind: str(kind.name))
async def test_no_bytes_end_a_consumer(kind: type[Consumer]) -> None:
    outcome = await fuzz(kind, CASES, SEED)
    assert (outcome.ended, outcome.set_aside, outcome.problems) == (0, 0, [])
    assert outcome.cases >= CASES - len(kind.queues)


async def test_no_bytes_that_come_back_cost_a_publisher_its_answer() -> None:
    outcome = await fuzz_publisher(CASES, SEED)
    assert (outcome.cases, outcome.ended, outcome.problems) == (CASES, 0, [])


async def test_a_consumer_is_ended_without_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apc_bus.rabbit.consumer.read_delivery", by_pamqp)
    assert (await fuzz(LogConsumer, 500, SEED)).ended
