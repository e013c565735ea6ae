"""Self-fencing, from the heartbeat alone."""

from datetime import timedelta

import pytest

from apc_orchestrator.fence import Fence


@pytest.mark.parametrize("seconds", range(1, 61))
def test_the_fence_follows_the_heartbeat(seconds: int) -> None:
    heartbeat = timedelta(seconds=seconds)

    fence = Fence.of(heartbeat)

    assert fence.silence_seconds == seconds, "a frozen gate leaves before the broker gives its shard away"
    assert 3 * fence.question_seconds < fence.silence_seconds, "answers may be late, and one may fail"
