"""The judge's work queue and the tags of unjudgeable timers: order and bound."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_orchestrator.errors import ShardLost
from apc_orchestrator.judging.deliveries import WorkQueue
from apc_orchestrator.shard import intake
from apc_orchestrator.shard.intake import UnjudgeableTimers

Tree = tuple[int, list[Any]]
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.integers(), st.just([])),
    lambda children: st.tuples(st.integers(), st.lists(children, max_size=3)),
    max_leaves=20,
)


def by_recursion(trees: list[Tree]) -> list[int]:
    """Return the order in which a judge that calls itself would do the same work."""
    return [number for value, children in trees for number in (value, *by_recursion(children))]


@given(st.lists(TREES, max_size=4))
def test_what_an_item_causes_is_done_before_its_siblings(trees: list[Tree]) -> None:
    queue: Any = WorkQueue()
    queue.add(trees)
    done = []
    while (item := queue.next()) is not None:
        done.append(item[0])
        queue.add(item[1])

    assert done == by_recursion(trees)


def test_the_oldest_tag_of_very_many_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "KEPT", 3)
    known = UnjudgeableTimers()
    tags = [UUID(int=number) for number in range(5)]
    for tag in tags:
        assert isinstance(known.give_up(tag, ValueError("no")), ShardLost)

    assert [tag in known for tag in tags] == [False, False, True, True, True]
