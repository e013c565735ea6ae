"""How often the writers of a process begin transactions: many busy shards share the pace of one."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from apc_persister import writer
from apc_persister.writer import BUSY_SECONDS, MOST_BUSY, Pace

INTERVAL = 0.05


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless a test moves it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_interval_grows_with_the_busy_shards_up_to_a_bound(clock: SimpleNamespace) -> None:
    pace = Pace(timedelta(seconds=INTERVAL))
    assert pace.rest(0) <= 0, "the first one does not wait"
    for shard in range(MOST_BUSY + 5):
        pace.begin(shard)
        assert pace.rest(0) == pytest.approx(INTERVAL * min(shard + 1, MOST_BUSY))


def test_shards_that_rest_slow_down_nobody(clock: SimpleNamespace) -> None:
    pace = Pace(timedelta(seconds=INTERVAL))
    for shard in range(16):
        pace.begin(shard)
    clock.now += BUSY_SECONDS
    pace.begin(3)
    assert pace.rest(3) == pytest.approx(INTERVAL)
    assert pace.rest(4) <= 0
