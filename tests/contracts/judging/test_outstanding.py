"""Open deliveries by recipient and sender, and how an inbox is shared."""

from collections import Counter
from random import Random

from apc_contracts.judging.quotas import Outstanding


def test_it_counts_what_has_no_end_and_remembers_nobody_else() -> None:
    outstanding, expected, chance = Outstanding(), Counter[tuple[str, str]](), Random(1)
    for _ in range(2000):
        pair = (chance.choice("abc"), chance.choice("xyz"))
        if expected[pair] and chance.random() < 0.6:
            outstanding.end(*pair)
            expected[pair] -= 1
        else:
            outstanding.begin(*pair)
            expected[pair] += 1
    for sender in "abc":
        own = {recipient: expected[sender, recipient] for recipient in "xyz" if expected[sender, recipient]}
        assert outstanding.of(sender) == own
    for pair in list(expected.elements()):
        outstanding.end(*pair)
    assert not outstanding.totals and not any(outstanding.of(sender) for sender in "abc")
