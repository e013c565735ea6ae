"""Which consumers a bus expects, and when it takes one for starved or passed over."""

import asyncio

import pytest

from apc_bus.errors import QueueMissing
from apc_bus.rabbit.health import PASSED_OVER_AFTER_LOOKS, STARVED_AFTER_LOOKS, Expected, ExpectedConsumers


class Consumer:
    """A consumer that believes to live."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.received = 0
        self.is_idle = True

    @property
    def is_live(self) -> bool:
        return not self.ended

    def end(self, reason: str) -> None:
        self.ended.append(reason)


def test_only_what_the_broker_does_not_know_for_long_has_starved() -> None:
    expected, consumer = Expected("q"), Consumer()
    expected.consumer = consumer
    for consumers in (0, 0, 1, 0, 0):  # an election ends in between
        assert not expected.compare(3, consumers)
    assert expected.compare(3, 0) and consumer.ended == ["the broker knows no consumer of q"]
    assert STARVED_AFTER_LOOKS == 3
    assert not expected.is_live and not any(expected.compare(3, 0) for _ in range(9))


def looks_until_given_up(expected: Expected, messages: int, longest: int = 30) -> int | None:
    """Return how often the broker has to say that so many messages wait; None = it is never given up."""
    return next((look for look in range(1, longest) if expected.compare(messages, 1)), None)


def test_who_is_passed_over_is_given_up_sooner_when_it_had_messages() -> None:
    for received, looks in ((0, PASSED_OVER_AFTER_LOOKS), (5, STARVED_AFTER_LOOKS)):
        expected, consumer = Expected("q"), Consumer()
        expected.consumer, consumer.received = consumer, received
        expected.compare(0, 1)
        assert looks_until_given_up(expected, messages=2) == looks
        assert consumer.ended == ["2 messages wait in q, and this consumer gets none"]


def test_who_is_busy_or_served_or_has_nothing_to_get_is_not_passed_over() -> None:
    expected, consumer = Expected("q"), Consumer()
    expected.consumer, consumer.received = consumer, 5
    assert looks_until_given_up(expected, messages=0) is None
    consumer.is_idle = False
    assert looks_until_given_up(expected, messages=9) is None
    consumer.is_idle = True
    for _ in range(30):
        consumer.received += 1
        assert not expected.compare(9, 1)


def test_what_ended_by_an_error_is_still_expected() -> None:
    consumers = ExpectedConsumers()
    with pytest.raises(QueueMissing), consumers.expect("q"):
        raise QueueMissing("no queue q")
    (missing,) = consumers
    assert not missing.is_live
    with consumers.expect("q") as again:
        assert again is missing
    with pytest.raises(asyncio.CancelledError), consumers.expect("q"):
        raise asyncio.CancelledError
    assert not list(consumers)
