"""The queues in which retries wait: one for each delay, so that a long wait holds up no short one."""

RETRY_DELAYS_MS = tuple(125 << step for step in range(12))
"""How long each delay queue keeps a message: 125 ms, doubling up to 256 s. All messages of a queue wait equally long: a
broker looks at the head only, where a long wait would hold up the short ones behind it."""


def retry_queue(delay_ms: int) -> str:
    """Return the queue in which a retry waits for this time."""
    return f"apc.retry.{delay_ms}ms"


def retry_key(delay_ms: int, shard: int) -> str:
    """Return the key on apc.retry, and again on apc.receipts when the time is over."""
    return f"{delay_ms}ms.{shard}"


def retry_delay_ms(left_ms: int) -> int:
    """Return which delay queue takes a message that has so long to wait.

    The shortest one that is at most a quarter too long; else the longest that is not too long, and what is then left
    is another round: two on average, up to the longest delay.
    """
    for delay in RETRY_DELAYS_MS:
        if left_ms <= delay:
            is_close = delay <= left_ms * 5 / 4 or delay == RETRY_DELAYS_MS[0]
            return delay if is_close else delay // 2
    return RETRY_DELAYS_MS[-1]
