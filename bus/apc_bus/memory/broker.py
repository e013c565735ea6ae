"""The in-process broker: exchanges, queues and the log of the substrate, in plain Python objects."""

from msgspec.structs import replace

from apc_bus.errors import PublishRefused, PublishUnroutable, QueueMissing
from apc_bus.memory.bus import MemoryBus
from apc_bus.memory.key_matching import Router
from apc_bus.memory.queue import MemoryQueue
from apc_bus.memory.stream import MemoryStream
from apc_bus.memory.subscription import Stored
from apc_bus.port import Publication
from apc_bus.topology import Queue, QueueKind, Topology


class MemoryBroker:
    """A broker inside this process, for one event loop. Nothing is durable: it ends with the process.

    Args:
        topology: what exists; `apply` adds to it, so that agents can join later.
    """

    def __init__(self, topology: Topology) -> None:
        self._router = Router()
        self._queues: dict[str, MemoryQueue | MemoryStream] = {}
        self.apply(topology)

    def apply(self, topology: Topology) -> None:
        """Create what does not exist yet; idempotent. Messages stay where they are."""
        self._router.add(topology)
        for queue in topology.queues:
            if queue.name not in self._queues:
                is_stream = queue.kind is QueueKind.STREAM
                self._queues[queue.name] = MemoryStream(queue) if is_stream else MemoryQueue(queue, self._dead_letter)

    def connect(self, user: str) -> MemoryBus:
        """Return a bus for one broker user."""
        return MemoryBus(self, user)

    def queue(self, name: str) -> MemoryQueue | MemoryStream:
        """Return a queue by name. Raises QueueMissing."""
        try:
            return self._queues[name]
        except KeyError:
            raise QueueMissing(f"no queue {name}: add it to the topology") from None

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages; its consumers get SubscriptionLost. Raises QueueMissing."""
        queue = self.queue(name)
        del self._queues[name]
        self._router.forget(name)
        for consumer in queue.consumers:
            consumer.end(f"queue {name} was deleted")

    def publish(self, publication: Publication, user: str) -> None:
        """Route a message, and those that follow it, into every queue whose binding matches.

        Raises:
            PublishRefused: unknown exchange, a user_id that is not the publisher's, a full queue.
            PublishUnroutable: no queue takes it.
        """
        messages = publication.message, *publication.followed_by
        for message in messages:
            if message.user_id is not None and message.user_id != user:
                raise PublishRefused(f"user_id is {message.user_id!r} but the connection's user is {user!r}")
        names = self._router.route(publication.exchange, publication.routing_key)
        if not names:
            raise PublishUnroutable(
                f"no queue takes key {publication.routing_key!r} of exchange {publication.exchange}"
            )
        queues = [self._queues[name] for name in names]
        for queue in queues:
            queue.check_room(*messages)
        for queue in queues:
            for message in messages:
                queue.append(message, publication.routing_key)

    def _dead_letter(self, queue: Queue, stored: Stored, reason: str) -> None:
        if queue.dead_letter_exchange is None:
            return
        headers = {
            "x-first-death-queue": queue.name,
            "x-first-death-reason": reason,
            **stored.message.headers,
        }
        message = replace(stored.message, expiration_ms=None, headers=headers)
        # Without regard to the bound of the dead queue: with at-least-once dead-lettering the broker keeps
        # what that queue refuses in the first queue, which is memory as well.
        for name in self._router.route(queue.dead_letter_exchange, stored.routing_key):
            self._queues[name].append(message, stored.routing_key)
