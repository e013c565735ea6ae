"""Which queues a key of an exchange goes to: AMQP 0-9-1 direct, fanout and topic matching."""

from collections.abc import Callable

from apc_bus.errors import PublishRefused
from apc_bus.topology import Binding, ExchangeKind, Topology


class Router:
    """Exchanges and their bindings. Routes are remembered until a binding changes."""

    def __init__(self) -> None:
        self._kinds: dict[str, ExchangeKind] = {}
        self._bindings: dict[str, dict[Binding, None]] = {}
        self._routes: dict[tuple[str, str], tuple[str, ...]] = {}

    def add(self, topology: Topology) -> None:
        """Add exchanges and bindings; idempotent."""
        for exchange in topology.exchanges:
            self._kinds[exchange.name] = exchange.kind
            self._bindings.setdefault(exchange.name, {})
        for binding in topology.bindings:
            self._bindings[binding.exchange][binding] = None
        self._routes.clear()

    def forget(self, queue: str) -> None:
        """Remove a queue's bindings."""
        for exchange, bindings in self._bindings.items():
            self._bindings[exchange] = {one: None for one in bindings if one.queue != queue}
        self._routes.clear()

    def route(self, exchange: str, key: str) -> tuple[str, ...]:
        """Return the queues for a key, each once. Raises PublishRefused for an unknown exchange."""
        route = self._routes.get((exchange, key))
        if route is None:
            if exchange not in self._kinds:
                raise PublishRefused(f"no exchange {exchange}: run `apc topology apply`")
            route = self._match(exchange, key)
            if route:  # misses are not remembered: any key may be tried, and memory is bounded
                self._routes[(exchange, key)] = route
        return route

    def _match(self, exchange: str, key: str) -> tuple[str, ...]:
        takes = _MATCHERS[self._kinds[exchange]]
        queues = (binding.queue for binding in self._bindings[exchange] if takes(binding.key, key))
        return tuple(dict.fromkeys(queues))


def topic_matches(binding: str, key: str) -> bool:
    """Return whether a topic binding takes a key: `*` is one word, `#` is any number of words, none included."""
    return _words_match(binding.split("."), key.split(".") if key else [])


def _words_match(binding: list[str], key: list[str]) -> bool:
    if not binding:
        return not key
    word, *rest = binding
    if word == "#":
        return _words_match(rest, key) or (bool(key) and _words_match(binding, key[1:]))
    return bool(key) and word in ("*", key[0]) and _words_match(rest, key[1:])


_MATCHERS: dict[ExchangeKind, Callable[[str, str], bool]] = {
    ExchangeKind.DIRECT: str.__eq__,
    ExchangeKind.FANOUT: lambda binding, key: True,
    ExchangeKind.TOPIC: topic_matches,
}
