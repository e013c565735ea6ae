"""Takes deliveries one after the other, the urgent ones first, in the order of docs/reference/protocol.md section 3."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self

import aio_pika
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage, AbstractQueue
from packets import Document, Key, Marks, Schemas, Sessions, build_answer, build_root, expiry_of, new_id, now, seal
from packets import slot_of as slot

Handler = Callable[[Document, Callable[[Document], None]], Awaitable[None]]
Log = Callable[..., None]

CONFIRM_PATIENCE = 30.0
PRESENCE_INTERVAL = 30.0
"""Seconds."""
PREFETCH = 20
REMEMBERED = 50_000
PRESENCE = {"session_id": "_presence", "run_id": "presence", "task_id": "presence"}
NEVER_ACKNOWLEDGED = {"ACK", "NACK", "ERROR", "HEARTBEAT", "RETRACTION"}


class Broker:
    """Two connections, because a broker in need blocks those that publish, and nothing may block acknowledgements."""

    def __init__(
        self, user: str, exchanges: Mapping[str, AbstractExchange], queues: Mapping[str, AbstractQueue]
    ) -> None:
        self._user = user
        self._exchanges = exchanges
        self.queues = queues

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, user: str, agent_id: str, lost: Callable[..., None]) -> AsyncIterator[Self]:
        """Connect; `lost` is called when a connection, a channel or a consumer ends by itself.

        A client declares nothing: the exchanges and queues exist.
        """
        async with await aio_pika.connect(url) as publishing, await aio_pika.connect(url) as consuming:
            outgoing = await publishing.channel(on_return_raises=True)
            incoming = await consuming.channel()
            await incoming.set_qos(prefetch_count=PREFETCH)
            exchanges = {
                name: await outgoing.get_exchange(name, ensure=False) for name in ("apc.ingress", "apc.receipts")
            }
            queues = {
                kind: await incoming.get_queue(f"apc.agent.{agent_id}.{kind}", ensure=False)
                for kind in ("urgent", "normal")
            }
            for connection in (publishing, consuming):
                connection.close_callbacks.add(lost)
            for channel in (outgoing, incoming):
                channel.close_callbacks.add(lost)
            # The broker cancels a consumer whose queue is deleted; only the channel below aio-pika's says so.
            below = await incoming.get_underlay_channel()
            below.on_consumer_cancel_callbacks.add(lambda frame: lost(frame.consumer_tag, "it cancelled a consumer"))
            yield cls(user, exchanges, queues)

    async def publish(self, exchange: str, session_id: str, message: aio_pika.Message) -> None:
        """Return when the broker has the message.

        Raises DeliveryError when no queue exists for it: run `apc topology apply`. After any other exception it is
        unknown whether the broker has it.
        """
        message.user_id, message.content_type = self._user, "application/json"
        message.delivery_mode = aio_pika.DeliveryMode.PERSISTENT
        await self._exchanges[exchange].publish(message, slot(session_id), mandatory=True, timeout=CONFIRM_PATIENCE)


class Worker:
    """Handles one packet at a time.

    Args:
        actor: agent_id, role and swarm_id, as registered.
        handlers: by packet type; a handler gets the packet, and a function that emits a draft.
        log: takes an event and its fields.
    """

    def __init__(
        self,
        actor: Document,
        broker: Broker,
        schemas: Schemas,
        handlers: Mapping[str, Handler],
        log: Log,
        key: Key | None = None,
    ) -> None:
        self._actor, self._broker, self._schemas = actor, broker, schemas
        self._handlers, self._log, self._key = handlers, log, key
        self._waiting: dict[str, deque[AbstractIncomingMessage]] = {kind: deque() for kind in ("urgent", "normal")}
        self._arrived = asyncio.Event()
        self._handled: dict[tuple[str, int], None] = {}
        self._marks, self._sessions = Marks(), Sessions()

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Take packets until `stop`. What is begun is ended; what waits goes back to the broker when that closes."""
        await self._say_presence()
        for kind, queue in self._broker.queues.items():
            await queue.consume(self._taker(kind))
        ready()
        async with asyncio.TaskGroup() as tasks:
            presence = tasks.create_task(self._repeat_presence())
            tasks.create_task(self._wake_at(stop))
            while not stop.is_set():
                message = next((waiting.popleft() for waiting in self._waiting.values() if waiting), None)
                if message is not None:
                    await self._take_message(message)
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
            presence.cancel()

    def _taker(self, kind: str) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
        async def take(message: AbstractIncomingMessage) -> None:
            self._waiting[kind].append(message)
            self._arrived.set()

        return take

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._arrived.set()

    async def _take_message(self, message: AbstractIncomingMessage) -> None:
        try:
            packet = json.loads(message.body)
            self._schemas.check_packet(packet)
        except Exception as error:
            self._log("unreadable", message_id=message.message_id, reason=str(error).partition("\n")[0])
            await message.reject(requeue=False)  # to the dead letters
            return
        await self._take(packet, dict(message.headers))
        await message.ack()

    async def _take(self, packet: Document, headers: Document) -> None:
        attempt: int = headers.get("apc-attempt", 0)
        if (packet["packet_id"], attempt) in self._handled:
            return
        if "apc-mark" not in headers:
            told, payload = (packet.get("metadata") or {}).get("refusal", {}), packet["payload"]
            self._log("refused", packet_id=payload["acked_packet_id"], reason=payload.get("reason"), **_law(told))
            return
        if self._marks.is_fenced(headers):
            return
        self._sessions.learn(packet, headers)
        if datetime.now(UTC) >= expiry_of(packet):
            await self._report(packet, attempt, ["expired"])
        else:
            await self._handle(packet, attempt, headers)
        self._handled[packet["packet_id"], attempt] = None
        if len(self._handled) > REMEMBERED:
            del self._handled[next(iter(self._handled))]

    async def _handle(self, packet: Document, attempt: int, headers: Document) -> None:
        await self._report(packet, attempt, ["delivery_ack"])
        drafts: list[Document] = []
        try:
            if handler := self._handlers.get(packet["packet_type"]):  # other types need no work
                await handler(packet, drafts.append)
        except Exception as error:
            self._log("handler_failed", packet_id=packet["packet_id"], reason=repr(error))
            return await self._report(packet, attempt, ["reject"], repr(error))
        if packet["routing"]["requires_ack"] and packet["packet_type"] not in NEVER_ACKNOWLEDGED:
            acknowledged = {"acked_packet_id": packet["packet_id"], "ack_status": "ACCEPTED"}
            drafts.append({"type": "ACK", "payload": acknowledged})
        trace: Document = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        for ordinal, draft in enumerate(drafts):
            moment = self._sessions.of(packet["trace"]["session_id"])
            answer = build_answer(self._actor, packet, ordinal, moment, draft)
            await self._send(answer, {"apc-cause": packet["packet_id"], "apc-ordinal": ordinal, **trace})
            self._log("answered", packet_id=answer["packet_id"], type=answer["packet_type"], cause=packet["packet_id"])
        await self._report(packet, attempt, ["consumer_apply", "outcome"])

    async def _repeat_presence(self) -> None:
        while True:
            await asyncio.sleep(PRESENCE_INTERVAL)
            await self._say_presence()

    async def _say_presence(self) -> None:
        """Say that the agent lives."""
        ttl_ms = round(2 * PRESENCE_INTERVAL * 1000)
        draft = {"type": "HEARTBEAT", "payload": {"signal": "HEARTBEAT"}, "to": "orchestrator", "ttl_ms": ttl_ms}
        await self._send(build_root(self._actor, PRESENCE, draft), {})

    async def _send(self, packet: Document, headers: dict[str, Any]) -> None:
        self._schemas.check_packet(packet)
        body = seal(packet)
        signature = {} if self._key is None else {"apc-signature": self._key.signature_of(packet, body)}
        message = aio_pika.Message(
            body,
            type=packet["packet_type"],
            message_id=packet["packet_id"],
            correlation_id=packet["trace"]["root_packet_id"],
            headers=headers | signature,
        )
        await self._broker.publish("apc.ingress", packet["trace"]["session_id"], message)

    async def _report(self, packet: Document, attempt: int, kinds: list[str], error: str | None = None) -> None:
        session_id = packet["trace"]["session_id"]
        common = {
            "packet_id": packet["packet_id"],
            "session_id": session_id,
            "recipient": self._actor["agent_id"],
            "attempt": attempt,
            "at": now(),
        }
        said = {} if error is None else {"error": error}
        receipts = [{**common, **said, "kind": kind} for kind in kinds]
        self._schemas.check_receipts(receipts)
        message = aio_pika.Message(json.dumps(receipts).encode(), type="receipts", message_id=new_id())
        await self._broker.publish("apc.receipts", session_id, message)


def _law(refusal: Document) -> Document:
    """Return the rule that refused a packet, and its remedy, as far as the gate names them."""
    return {name: refusal[name] for name in ("rule", "remedy") if name in refusal}
