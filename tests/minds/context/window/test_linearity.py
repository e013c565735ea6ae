"""Resource classes: ordered, never sinking, never forgotten."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_minds.context import LinearityError, LinearityMap, ResourceClass, UnknownResource

IDS = st.sampled_from(["t1", "t2", "t3"])
EVENTS = st.lists(st.tuples(st.sampled_from(["tag", "promote", "drop"]), IDS, st.sampled_from(ResourceClass)))


def test_the_classes_are_those_of_the_protocol_in_their_order() -> None:
    assert [one.name for one in ResourceClass] == ["DROPPABLE", "REQUIRED", "PRESERVED"]
    assert [one.value for one in ResourceClass] == [0, 1, 2]
    assert ResourceClass.DROPPABLE < ResourceClass.REQUIRED < ResourceClass.PRESERVED


def _applied(linearity: LinearityMap, name: str, resource_id: str, resource_class: ResourceClass) -> LinearityMap:
    if name == "tag":
        return linearity.tag(resource_id, resource_class, "test")
    if name == "promote":
        return linearity.promote(resource_id, resource_class, "test")
    return linearity.drop(resource_id, "test")


@given(EVENTS)
def test_a_class_never_sinks_whatever_is_asked(events: list[tuple[str, str, ResourceClass]]) -> None:
    linearity, highest = LinearityMap(), dict[str, ResourceClass]()
    for name, resource_id, resource_class in events:
        before = linearity
        try:
            linearity = _applied(linearity, name, resource_id, resource_class)
        except (LinearityError, UnknownResource):
            assert linearity is before
            continue
        for known in before:
            assert not linearity.get_class(known) < before.get_class(known)
            longer, shorter = linearity.provenance(known), before.provenance(known)
            assert longer[: len(shorter)] == shorter
        highest[resource_id] = linearity.get_class(resource_id)
    assert {one: linearity.get_class(one) for one in linearity} == highest


@given(EVENTS)
def test_a_stored_map_is_the_same_again(events: list[tuple[str, str, ResourceClass]]) -> None:
    linearity = LinearityMap()
    for name, resource_id, resource_class in events:
        try:
            linearity = _applied(linearity, name, resource_id, resource_class)
        except (LinearityError, UnknownResource):
            continue
    assert LinearityMap.from_document(orjson.loads(orjson.dumps(linearity.to_document()))) == linearity


def test_only_droppable_may_be_dropped() -> None:
    linearity = LinearityMap().tag("t1", ResourceClass.REQUIRED, "test").tag("t2", ResourceClass.DROPPABLE, "test")
    with pytest.raises(LinearityError, match="t1: it is REQUIRED"):
        linearity.drop("t1", "test")
    dropped = linearity.drop("t2", "no use")
    assert dropped.resource("t2").is_dropped
    assert dropped.get_class("t2") is ResourceClass.DROPPABLE
    assert dropped.drop("t2", "again") is dropped
    assert not dropped.restore("t2").resource("t2").is_dropped
    assert not linearity.resource("t2").is_dropped, "the older map stays as it was"


def test_what_a_class_comes_from_is_told_in_order() -> None:
    linearity = LinearityMap().tag("t1", ResourceClass.DROPPABLE, "role tool")
    promoted = linearity.promote("t1", ResourceClass.PRESERVED, "cited")
    assert [(one.event, one.source) for one in promoted.provenance("t1")] == [
        ("tagged", "role tool"),
        ("promoted", "cited"),
    ]
    with pytest.raises(LinearityError, match="never sinks"):
        promoted.promote("t1", ResourceClass.REQUIRED, "less")
    with pytest.raises(UnknownResource):
        promoted.promote("t2", ResourceClass.REQUIRED, "whatever")
    assert promoted.stats() == {"droppable": 0, "required": 0, "preserved": 1, "dropped": 0, "total": 1}
