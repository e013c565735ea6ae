"""What is acknowledged at the broker: a message when all its parts are settled, in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from apc_bus.rabbit.consumer import Unsettled

acts = st.lists(st.tuples(st.sampled_from(["one", "up to", "give back"]), st.integers(0, 40)), max_size=40)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), acts)
def test_it_agrees_with_a_plain_model(sizes: list[int], done: list[tuple[str, int]]) -> None:
    unsettled = Unsettled()
    tags = [list(unsettled.add(number, size)) for number, size in enumerate(sizes, start=1)]
    order = [tag for message in tags for tag in message]
    waiting, gone, along = set(order), set[int](), set[int]()
    for act, choice in done:
        tag = order[choice % len(order)]
        assert (tag in unsettled) is (tag in waiting | along)
        if act != "up to" and tag not in waiting | along:
            continue
        message = next(number for number, found in enumerate(tags, start=1) if tag in found)
        before = {number for number, found in enumerate(tags, start=1) if waiting.isdisjoint(found)} | gone
        if act == "one" and tag in along:
            along.discard(tag)
            assert unsettled.settle(tag) is None
        elif act == "one":
            waiting.discard(tag)
            is_whole = waiting.isdisjoint(tags[message - 1])
            assert unsettled.settle(tag) == (message if is_whole else None)
        elif act == "up to":
            waiting -= set(order[: order.index(tag) + 1])
            along -= set(order[: order.index(tag) + 1])
            after = {number for number, found in enumerate(tags, start=1) if waiting.isdisjoint(found)} | gone
            assert unsettled.settle_up_to(tag) == max(after - before, default=None)
        elif tag in along:
            along.discard(tag)
            assert unsettled.give_back(tag) is None
        else:
            assert unsettled.give_back(tag) == message
            along |= waiting & set(tags[message - 1]) - {tag}
            waiting -= set(tags[message - 1])
            gone.add(message)
        assert len(unsettled) == len(waiting)


def test_an_acknowledgement_of_all_up_to_a_part_stops_before_its_message() -> None:
    unsettled = Unsettled()
    unsettled.add(1)
    second = unsettled.add(2, 3)
    unsettled.add(3)
    assert unsettled.settle_up_to(second[1]) == 1, "the rest of the second would be lost with it"
    assert unsettled.settle_up_to(second[2]) == 2


def test_what_went_with_another_part_may_still_be_settled_once() -> None:
    """A handler of one part does not know that another part gave their message back."""
    unsettled = Unsettled()
    first, second, third = unsettled.add(1, 3)
    assert unsettled.give_back(second) == 1
    assert (unsettled.settle(first), unsettled.give_back(third)) == (None, None)
    assert first not in unsettled and third not in unsettled and not len(unsettled)
