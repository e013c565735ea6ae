"""The port to a message broker; `rabbit/` and `in_memory.py` are its adapters, one test suite runs over both."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from apc_bus.errors import BusError

if TYPE_CHECKING:
    from apc_bus.last_resort import RedeliveryWatch, Risk

HeaderValue = str | int | bool | float | bytes | None | list[str]


class Message(msgspec.Struct, frozen=True):
    """An AMQP message: exact body bytes and the properties that this product uses."""

    body: bytes
    message_id: str
    type: str = ""
    correlation_id: str | None = None
    user_id: str | None = None
    expiration_ms: int | None = None
    content_type: str = "application/json"
    headers: Mapping[str, HeaderValue] = msgspec.field(default_factory=dict)


class Publication(msgspec.Struct, frozen=True):
    """A message and where it goes.

    A message for apc.ingress may be followed by others of the same user: the broker takes all of them or none, and an
    orchestrator gets them one after the other. Source: docs/decisions/0017-bundles.md.
    """

    exchange: str
    routing_key: str
    message: Message
    followed_by: tuple[Message, ...] = ()
    is_repeated: bool = False
    """Whether a former process may have handed it to its consumer. A broker that ends with its process delivers it as
    redelivered; others know by themselves what they have delivered, and nothing of this goes over the wire."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """That a message has ended its consumers while it was alone (`apc_bus.last_resort`): it is never handled."""

    properties: bytes | None = None
    """The AMQP properties as they came, when it was not read at all: `message` then has its body and user_id alone."""
    reading: "Risk | None" = None
    """What reading it once more is wrapped in, to tell its sender; None = it is not read."""


class Delivery(msgspec.Struct, frozen=True):
    """A message that the broker handed to a consumer and that waits for its acknowledgement."""

    message: Message
    tag: int
    routing_key: str
    is_redelivered: bool
    offset: int | None = None
    """Position in the substrate stream, None for a queue. Offsets have holes: resume from last seen + 1."""
    risk: "Risk | None" = None
    """What handling it is wrapped in while messages are taken one at a time; None = they are not."""
    set_aside: SetAside | None = None
    """The last resort: keep the message, never handle it."""

    def checked(self) -> "Delivery":
        """Return it as it is, or one to be set aside when its risk is too high."""
        risk = self.risk
        if risk is None or not risk.is_too_high(self.message.message_id):
            return self
        return replace(self, risk=None, set_aside=SetAside(reading=risk if risk.may_be_read() else None))

    def read_alone(self) -> AbstractContextManager[None]:
        """Return the context in which something is done with it that does not wait."""
        return nullcontext() if self.risk is None else self.risk.at_once()


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Messages ready in a queue and consumers on it, asked from the broker now."""

    messages: int
    consumers: int


class Subscription(Protocol):
    """One consumer on one queue, on its own channel.

    At least once: a delivery that is not acknowledged when the subscription ends comes again, with `is_redelivered`,
    and with it others that travelled in the same message. Order is the queue's order. Every method raises
    SubscriptionLost once the channel, the connection or the queue is gone; what was received and not acknowledged comes
    again to a new subscription.
    """

    @property
    def last_read(self) -> float:
        """CLOCK_BOOTTIME, in seconds, of the last sign of life read from the broker."""
        ...

    @property
    def longest_silence(self) -> float:
        """Longest time in seconds between two successive reads from the broker since the subscription began.

        The silence that still lasts counts. It also tells of a freeze that is over: `last_read` would not.
        """
        ...

    async def receive(self, max_messages: int = 256, max_bytes: int = 1 << 20) -> list[Delivery]:
        """Return what the broker has already handed over: waits for the first message only, never for a batch."""
        ...

    async def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Acknowledge one delivery, or with `multiple` it and all earlier ones of this subscription."""
        ...

    async def nack(self, delivery: Delivery, *, requeue: bool) -> None:
        """Give a delivery back to the queue, or with requeue=False to its dead-letter exchange.

        Packets for an orchestrator that travelled in the same message go with it.
        """
        ...

    async def extend(self) -> None:
        """Let the broker hand over `prefetch` more deliveries, whatever those before are doing.

        What was handed over stays to be acknowledged. For a consumer that waits for something behind what it holds.
        """
        ...

    async def publish(self, publication: Publication) -> None:
        """Publish on this consumer's own channel and wait for the confirm; errors as `Bus.publish`.

        An orchestrator that lost its queue gets no confirm here (docs/specification/architecture.md section 2).
        """
        ...


class ActPublisher(Protocol):
    """Publishes as one broker user: a bus, or a door into a system whose bus is in another process."""

    @property
    def user(self) -> str:
        """The broker user in whose name is published; what `user_id` must be."""
        ...

    async def publish(self, publication: Publication) -> None:
        """Publish one message and wait until it cannot be lost. Raises BusError."""
        ...


class Bus(Protocol):
    """A connection to a broker as one broker user.

    A publish is mandatory, persistent and confirmed. It returns when a majority of broker nodes has the
    message. It raises PublishUnroutable (no queue took it), PublishRefused (the broker said no: nothing is
    stored) or PublishUnknown (time-out or lost channel: it may be stored; publishing again is always safe).
    BusUnavailable: no node answers, nothing was sent.
    Two publishes with one message_id are never in flight on one channel (docs/specification/architecture.md section 9).
    """

    @property
    def user(self) -> str:
        """The broker user of this connection; what `user_id` must be."""
        ...

    @property
    def problems(self) -> list[str]:
        """Why this bus cannot be relied on now, a sentence each; empty = it can. From any thread."""
        ...

    async def publish(self, publication: Publication) -> None:
        """Publish one message and wait for its confirm."""
        ...

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """Publish many, pipelined; one result each, in order: None = confirmed."""
        ...

    @property
    def scope(self) -> str | None:
        """The broker and the virtual host, whichever process asks; None = all of it ends with this process."""
        ...

    def subscribe(
        self, queue: str, *, prefetch: int = 1000, watch: "RedeliveryWatch | None" = None
    ) -> AbstractAsyncContextManager[Subscription]:
        """Consume: the caller pulls and acknowledges. `apc_bus.consuming` runs handlers over it.

        With a watch, of `LastResort.watch`, a message that ends its consumers is set aside in the end.
        """
        ...

    def read_substrate(
        self, offset: int | str = "next", *, since: float | None = None
    ) -> AbstractAsyncContextManager[Subscription]:
        """Read the substrate stream from `first`, `last`, `next` or an offset; `ack` only returns credit.

        `since`, a time of `boottime`, replaces the offset: what came from then on, and perhaps a little earlier.
        """
        ...

    async def depth(self, queue: str) -> QueueDepth:
        """Return the depth of a queue. Raises QueueMissing."""
        ...

    async def consumers(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Return how many consumers each queue has: 0 for one that does not exist, None where the broker did not say.

        For those who ask again and again: many queues cost little more than one. Raises nothing but CancelledError.
        """
        ...

    async def close(self) -> None:
        """Close the connections; idempotent."""
        ...
