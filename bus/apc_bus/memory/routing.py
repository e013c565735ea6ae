"""Which queues a key of an exchange goes to: AMQP 0-9-1 direct, fanout and topic matching."""

import re

from apc_bus.errors import PublishRefused
from apc_bus.topology import ExchangeKind, Topology


class Router:
    """Exchanges and their bindings. Routes are remembered until a binding changes."""

    def __init__(self) -> None:
        self._kinds: dict[str, ExchangeKind] = {}
        self._bindings: dict[str, dict[tuple[str, str], re.Pattern[str] | None]] = {}
        self._routes: dict[tuple[str, str], tuple[str, ...]] = {}

    def add(self, topology: Topology) -> None:
        """Add exchanges and bindings; idempotent."""
        for exchange in topology.exchanges:
            self._kinds[exchange.name] = exchange.kind
            self._bindings.setdefault(exchange.name, {})
        for binding in topology.bindings:
            pattern = None
            if self._kinds[binding.exchange] is ExchangeKind.TOPIC and _is_pattern(binding.key):
                pattern = topic_pattern(binding.key)
            self._bindings[binding.exchange][(binding.key, binding.queue)] = pattern
        self._routes.clear()

    def forget(self, queue: str) -> None:
        """Remove a queue's bindings."""
        for exchange, bindings in self._bindings.items():
            self._bindings[exchange] = {key: value for key, value in bindings.items() if key[1] != queue}
        self._routes.clear()

    def route(self, exchange: str, key: str) -> tuple[str, ...]:
        """The queues for a key, each once. Raises PublishRefused for an unknown exchange."""
        route = self._routes.get((exchange, key))
        if route is None:
            if exchange not in self._kinds:
                raise PublishRefused(f"no exchange {exchange}: run `apc topology apply`")
            route = self._match(exchange, key)
            if route:  # misses are not remembered: any key may be tried, and memory is bounded
                self._routes[(exchange, key)] = route
        return route

    def _match(self, exchange: str, key: str) -> tuple[str, ...]:
        is_fanout = self._kinds[exchange] is ExchangeKind.FANOUT
        return tuple(
            dict.fromkeys(
                queue
                for (bound, queue), pattern in self._bindings[exchange].items()
                if is_fanout or bound == key or (pattern is not None and pattern.fullmatch(key))
            )
        )


def topic_pattern(binding: str) -> re.Pattern[str]:
    """A topic binding as an expression: `*` is one word, `#` is any number of words, none included."""
    parts: list[str] = []
    for index, word in enumerate(binding.split(".")):
        dot = r"\." if index else ""
        if word == "#":
            parts.append(r"(?:(?:^|\.)[^.]*)*" if index == 0 else r"(?:\.[^.]*)*")
        else:
            parts.append(dot + (r"[^.]*" if word == "*" else re.escape(word)))
    return re.compile("".join(parts))


def _is_pattern(key: str) -> bool:
    return any(word in ("*", "#") for word in key.split("."))
