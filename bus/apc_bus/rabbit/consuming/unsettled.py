"""What a subscription has handed over and its consumer has not settled: the parts of a bundle share one message."""

from itertools import takewhile

from apc_bus.rabbit.bundles import MOST_PARTS


class Unsettled:
    """Counts what waits. A part's tag is the broker's, times MOST_PARTS, plus its place in the bundle."""

    def __init__(self) -> None:
        self._tags: dict[int, None] = {}
        self._parts_left: dict[int, int] = {}
        """Of bundles, by the broker's tag."""
        self._gone: set[int] = set()
        """Parts that were given back with another of their message, and that their consumer still has in hand."""

    def __len__(self) -> int:
        return len(self._tags)

    def __contains__(self, tag: object) -> bool:
        return tag in self._tags or tag in self._gone

    def add(self, broker_tag: int, parts: int = 1) -> range:
        """Note a message with so many parts; return their tags."""
        tags = range(broker_tag * MOST_PARTS, broker_tag * MOST_PARTS + parts)
        self._tags.update(dict.fromkeys(tags))
        if parts > 1:
            self._parts_left[broker_tag] = parts
        return tags

    def settle(self, tag: int) -> int | None:
        """Settle one part; return the broker's tag of a message that is settled with it."""
        if tag in self._gone:
            self._gone.discard(tag)
            return None
        del self._tags[tag]
        return self._without_part(tag // MOST_PARTS)

    def settle_up_to(self, tag: int) -> int | None:
        """Settle a part and all before it; return the broker's tag of the last message that is settled with them.

        All messages before that one are settled too.
        """
        last = None
        if self._gone:
            self._gone = {one for one in self._gone if one > tag}
        for one in list(takewhile(lambda open_tag: open_tag <= tag, self._tags)):
            del self._tags[one]
            last = self._without_part(one // MOST_PARTS) or last
        return last

    def give_back(self, tag: int) -> int | None:
        """Forget the message of a part with all its parts; return the broker's tag, None when it has gone already."""
        if tag in self._gone:
            self._gone.discard(tag)
            return None
        broker_tag = tag // MOST_PARTS
        for one in range(broker_tag * MOST_PARTS, (broker_tag + 1) * MOST_PARTS):
            if one in self._tags:
                del self._tags[one]
                self._gone.add(one)
        self._gone.discard(tag)
        self._parts_left.pop(broker_tag, None)
        return broker_tag

    def _without_part(self, broker_tag: int) -> int | None:
        left = self._parts_left.get(broker_tag)
        if left is None:
            return broker_tag
        if left > 1:
            self._parts_left[broker_tag] = left - 1
            return None
        del self._parts_left[broker_tag]
        return broker_tag
