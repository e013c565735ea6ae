"""Fencing by marks, and the bounded memory of what ended."""

import pytest

from apc_agents.running.delivery import FencingTokens, RecentKeys


def test_a_delivery_of_the_newest_epoch_is_never_fenced() -> None:
    marks = FencingTokens()
    assert not marks.is_fenced(1, 5, (0, 0))
    assert not marks.is_fenced(1, 4, (0, 0))
    assert not marks.is_fenced(2, 1, (1, 5))


@pytest.mark.parametrize(("batch_no", "is_fenced"), [(4, False), (5, False), (6, True)])
def test_an_older_epoch_counts_up_to_the_mark(batch_no: int, is_fenced: bool) -> None:
    marks = FencingTokens()
    marks.is_fenced(2, 1, (1, 5))
    assert marks.is_fenced(1, batch_no, (0, 0)) is is_fenced


def test_the_strictest_newer_mark_decides() -> None:
    marks = FencingTokens()
    marks.is_fenced(3, 1, (2, 7))
    assert not marks.is_fenced(1, 9, (0, 0)), "the mark of epoch 3 says nothing of the end of epoch 1"
    marks.is_fenced(2, 1, (1, 5))
    assert marks.is_fenced(1, 9, (0, 0))


def test_old_keys_are_forgotten_first() -> None:
    keys: RecentKeys[int] = RecentKeys(limit=2)
    for key in (1, 2, 3):
        keys.add(key)
    assert (1 in keys, 2 in keys, 3 in keys) == (False, True, True)
