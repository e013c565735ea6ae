"""Emits packets: judged locally, published confirmed, acknowledged where asked."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from logging import DEBUG
from uuid import UUID

from msgspec.structs import replace

from apc_agents.emission import NOT_FOLLOWED, Builder, Built, Draft, Emission, HeldPacket
from apc_agents.errors import EmitRefused, EmitRejected, EmitTimeout, Reject, Retry
from apc_agents.metrics import counted_emit
from apc_agents.outbox import ReceiptOutbox, publish_confirmed
from apc_bus import headers
from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import Backoff
from apc_bus.crash_points import crash_point
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactTooLarge
from apc_bus.gen_ai import messaging
from apc_bus.last_resort import others_go_on
from apc_bus.port import Bus, HeaderValue, Message, Publication
from apc_bus.settings import WorkerSettings
from apc_bus.telemetry import SpanKind, current_trace, describe, get_logger, in_span, packet_ids
from apc_bus.topology import INGRESS, RECEIPTS, intra_exchange, intra_key, is_urgent
from apc_contracts.admission.admit import admit
from apc_contracts.claim_check import ClaimCheckInvalid, check_in, redeem, references_of
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import slot_of
from apc_contracts.judging.facts import Facts
from apc_contracts.packet import TYPE_OF_PAYLOAD, AckPacket, NackPacket, Packet
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, Channel, DeliveryMode, PacketType
from apc_contracts.wire.parsing import SealedPacket, seal

# Emits that wait for their ACK or NACK.

FIRST_LOOK, LONGEST_LOOK = 0.2, 2.0
"""Seconds between two looks for answers that come another way."""
FIRST_ASK, LONGEST_ASK = 2.0, 10.0
"""Seconds between two questions for the verdict on a packet."""
_SENDING = messaging("send", "send", INGRESS)
_ANSWERS = frozenset({PacketType.ACK, PacketType.NACK})


class Expectation:
    """One emitted packet and those whose ACK is still missing.

    With `of_gate` it waits for the orchestrator's word alone: that the packet is accepted.
    """

    def __init__(self, packet: Packet, *, of_gate: bool = False) -> None:
        self._packet_id = packet.packet_id
        self._of_gate = of_gate
        self._missing = {ORCHESTRATOR} if of_gate else {recipient.agent_id for recipient in packet.recipients}
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answered(self, patience: timedelta, look: Callable[[], Awaitable[Iterable[Packet]]]) -> None:
        """Wait for every recipient's ACK; of a BROADCAST for the first.

        `look` finds the answers that do not come by this worker's inbox: now and then, for most come there.

        Raises:
            EmitRefused: the gate refused the packet.
            EmitRejected: a recipient answered NACK.
            EmitTimeout: not all have answered in time, as the orchestrator says, or it says nothing either.
        """
        try:
            async with asyncio.timeout(patience.total_seconds()):
                pauses = Backoff(FIRST_LOOK, LONGEST_LOOK)
                while not (await asyncio.wait((self._answered,), timeout=pauses.take()))[0]:
                    for answer in await look():
                        self.take(answer)
                await self._answered
        except TimeoutError:
            why = f"nobody has answered within {patience.total_seconds():g} s"
            raise EmitTimeout(self._packet_id, why) from None

    def take(self, answer: Packet) -> None:
        """Take an ACK or NACK of this packet."""
        if self._answered.done() or (self._of_gate and answer.sender.agent_id != ORCHESTRATOR):
            return
        if isinstance(answer, NackPacket):
            refusal = _refusal(answer)
            if self._of_gate and isinstance(refusal, EmitTimeout):  # accepted, and not acknowledged by its recipients
                return self._answered.set_result(None)
            self._answered.set_exception(refusal)
            self._answered.exception()  # a caller that gave up waiting has not lost an exception
            return
        self._missing -= {answer.sender.agent_id, ALL_RECIPIENTS}
        if not self._missing:
            self._answered.set_result(None)


class Acknowledgements:
    """The waiting emits of a worker by packet_id."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, Expectation] = {}
        self._early: dict[UUID, dict[UUID, Packet]] = {}
        """Packet -> its answers that have arrived and wait for their turn behind a handler."""

    @contextmanager
    def expect(self, packet: Packet, *, of_gate: bool = False) -> Iterator[Expectation]:
        """Watch for the answers to a packet that is about to be published, which may be a repeat."""
        expectation = self._waiting[packet.packet_id] = Expectation(packet, of_gate=of_gate)
        for answer in self._early.get(packet.packet_id, {}).values():
            expectation.take(answer)
        try:
            yield expectation
        finally:
            self._waiting.pop(packet.packet_id, None)

    def take(self, packet: Packet) -> None:
        """Pass an ACK or NACK on to the emit that waits for it, if one does."""
        if packet.packet_type not in _ANSWERS or not isinstance(packet, AckPacket | NackPacket):
            return
        self._early.setdefault(packet.payload.acked_packet_id, {})[packet.packet_id] = packet
        expectation = self._waiting.get(packet.payload.acked_packet_id)
        if expectation is not None:
            expectation.take(packet)

    def forget(self, packet: Packet) -> None:
        """Forget an answer whose delivery has ended: it is recorded, or comes again."""
        if packet.packet_type not in _ANSWERS or not isinstance(packet, AckPacket | NackPacket):
            return
        packet_id = packet.payload.acked_packet_id
        early = self._early.get(packet_id, {})
        early.pop(packet.packet_id, None)
        if not early:
            self._early.pop(packet_id, None)


def _refusal(nack: NackPacket) -> Exception:
    if nack.sender.agent_id != ORCHESTRATOR:
        return EmitRejected(nack)
    told = nack.metadata or {}
    refusal, overdue = told.get("refusal"), told.get("acknowledgement")
    if isinstance(refusal, dict):
        return EmitRefused.of(refusal)
    missing = overdue.get("missing") if isinstance(overdue, dict) else None
    if isinstance(missing, dict):
        states = {agent: str(state) for agent, state in missing.items()}
        return EmitTimeout(nack.payload.acked_packet_id, nack.payload.reason or "time is up", states)
    return EmitRejected(nack)


# The claim check of a worker: long texts go to the artifact store before a packet is published, and come back before
# its handler sees it.

STORE_AWAY_AFTER = timedelta(seconds=5)
"""When a packet is tried again whose texts could not be stored or fetched."""
_ADVICE = (
    "shorten it, or put the content into ctx.artifacts and send its hash, for instance as an ARTIFACT (claim check)"
)


class ClaimChecks:
    """Makes packets fit, and whole again.

    Args:
        artifacts: where the texts lie; without a store nothing can be checked in or redeemed.
        max_bytes: the texts that a packet may have in all.
    """

    def __init__(self, artifacts: ArtifactStore | None, max_bytes: int) -> None:
        self._artifacts = artifacts
        self._max_bytes = max_bytes

    async def check_in(self, packet: Packet) -> Packet:
        """Return the packet as it is published, its longest texts in the store.

        Raises:
            EmitRefused: TOO_LARGE, and how to mend it.
            Retry: the store cannot take them now.
        """
        if self._artifacts is None:
            raise _too_large(f"this worker has no artifact store for its texts (APC_ARTIFACTS_URL): {_ADVICE}")
        try:
            checked = check_in(packet, self._artifacts.uri)
        except ClaimCheckInvalid as invalid:
            raise EmitRefused("SCHEMA_INVALID", invalid.path, str(invalid)) from invalid
        if checked is None:
            raise _too_large(f"it stays larger than a packet may be without its long texts: {_ADVICE}")
        size = sum(map(len, checked.texts.values()))
        if size > self._max_bytes:
            raise _too_large(f"its texts have {size} bytes; {self._max_bytes} are allowed: {_ADVICE}")
        try:
            for text in checked.texts.values():
                await self._artifacts.put(text)
        except ArtifactTooLarge as error:
            raise _too_large(f"{error}: {_ADVICE}") from error
        except ArtifactError as error:
            raise Retry(STORE_AWAY_AFTER, str(error)) from error
        return checked.packet

    async def redeem(self, packet: Packet) -> Packet:
        """Return the packet as its sender built it, each text verified against its hash.

        Raises:
            Reject: its claim check does not fit it, or asks for too much.
            ArtifactMissing, ArtifactCorrupt: the store does not hold a text.
            Retry: the store does not answer.
        """
        try:
            references = references_of(packet)
            if not references:
                return packet
            size = sum(reference.size for reference in references)
            if size > self._max_bytes:
                raise Reject(f"its texts have {size} bytes; {self._max_bytes} are allowed")
            texts = {one.hash: await self._text(one.hash, one.size) for one in references}
            return redeem(packet, texts)
        except ClaimCheckInvalid as invalid:
            raise Reject(f"claim check: {invalid}") from invalid

    async def _text(self, artifact_hash: str, size: int) -> bytes:
        if self._artifacts is None:
            raise Retry(STORE_AWAY_AFTER, "this worker has no artifact store: set APC_ARTIFACTS_URL as its sender does")
        try:
            return await self._artifacts.get(artifact_hash, max_bytes=size)
        except ArtifactTooLarge as error:
            raise Reject(f"claim check: {error}, as its metadata says") from error
        except (ArtifactMissing, ArtifactCorrupt):
            raise
        except ArtifactError as error:
            raise Retry(STORE_AWAY_AFTER, str(error)) from error


def _too_large(why: str) -> EmitRefused:
    return EmitRefused("TOO_LARGE", "$", why)


_log = get_logger("apc_agents")

Sign = Callable[[SealedPacket], str]
"""Makes the header apc-signature of a sealed packet."""


class Emitter:
    """The one way out of a worker."""

    def __init__(
        self,
        bus: Bus,
        builder: Builder,
        acknowledgements: Acknowledgements,
        contract: Contract,
        settings: WorkerSettings,
        claim_checks: ClaimChecks,
        *,
        outbox: ReceiptOutbox | None = None,
        sign: Sign | None = None,
        deliver_locally: Callable[[Packet], None],
        look_for_answers: Callable[[Packet], Awaitable[Iterable[Packet]]] | None = None,
    ) -> None:
        self._bus = bus
        self._builder = builder
        self._acknowledgements = acknowledgements
        self.contract = contract
        self._settings = settings
        self._claim_checks = claim_checks
        self._outbox = outbox
        self._sign = sign
        self._deliver_locally = deliver_locally
        self._look_for_answers = look_for_answers or _nowhere
        self.last_emit = 0.0
        """Loop time, in seconds, of the last confirmed emit."""

    @property
    def agent_id(self) -> str:
        """The agent whose packets are emitted."""
        return self._builder.agent_id

    async def emit(self, draft: Draft, cause: Packet | None, ordinal: int, emission: Emission = NOT_FOLLOWED) -> Packet:
        """Build, judge, publish; returns the packet when the broker has confirmed it.

        With requires_ack it returns when every recipient (of a BROADCAST: the first) has sent its ACK. `emission`
        is told of every station.

        Raises:
            EmitRefused: what the local admit() refuses, at once; or the gate's NACK while an ACK is awaited.
            EmitUnconfirmed: no confirm within the publish deadline.
            EmitRejected, EmitTimeout: a NACK, or no answer, while an ACK is awaited.
        """
        kind = TYPE_OF_PAYLOAD.get(type(draft.payload))
        with counted_emit(self._builder.agent_id, kind), in_span("send", kind, SpanKind.PRODUCER, attributes=_SENDING):
            if draft.options.get("requires_ack") and draft.options.get("ack_timeout") is None:
                draft = draft.with_ack_timeout(self._settings.ack_timeout)
            built, publication = await self._prepared(draft, cause, ordinal, emission)
            packet, never_answered = built.packet, self.contract.refusals.never_answered
            if packet.routing.delivery_mode is DeliveryMode.SUBSTRATE or not packet.wants_ack(never_answered):
                await self._publish(publication)
                emission.published()
            else:
                with self._acknowledgements.expect(packet) as expectation:
                    await self._publish(publication)
                    crash_point("worker.before_required_ack")
                    emission.published()
                    await self._answered(packet, expectation, emission)
            emission.answered(True)
            await self._pass_on(built, publication)
            return packet

    async def emit_session(self, start: Draft, work: Callable[[Packet], Draft]) -> Packet:
        """Publish the START of a session and its work as one message; return the START, confirmed.

        If the gate refuses the work, it halts the session. Raises EmitRefused, EmitUnconfirmed.
        """
        agent_id, kind = self._builder.agent_id, PacketType.SIGNAL
        with (
            counted_emit(agent_id, kind),
            counted_emit(agent_id, PacketType.MESSAGE),
            in_span("send", kind, SpanKind.PRODUCER, attributes=_SENDING),
        ):
            built, opening = await self._prepared(start, None, 0, NOT_FOLLOWED)
            _, following = await self._prepared(work(built.packet), None, 0, NOT_FOLLOWED)
            message = following.message
            marked = replace(message, headers={**message.headers, headers.OPENING: True})
            await publish_confirmed(self._bus, replace(opening, followed_by=(marked,)), self._settings.publish_deadline)
        self.last_emit = asyncio.get_running_loop().time()
        return built.packet

    async def prepare(self, draft: Draft, cause: Packet | None, ordinal: int) -> Packet:
        """Return the packet that `emit` would publish. Raises EmitRefused."""
        built, _ = await self._prepared(draft, cause, ordinal, NOT_FOLLOWED)
        return built.packet

    async def publish_prepared(self, packet: Packet, cause: UUID | None, ordinal: int | None) -> None:
        """Publish a prepared packet, as often as needed: its bytes are the same each time. Raises EmitUnconfirmed."""
        sealed = await sealed_to_fit(packet, None, self._claim_checks)
        built = Built(packet, cause, ordinal)
        publication = self._publication(built, sealed)
        await self._publish(publication)
        await self._pass_on(built, publication)

    async def hold(
        self,
        draft: Draft,
        cause: Packet | None,
        ordinal: int,
        emission: Emission = NOT_FOLLOWED,
        *,
        is_remembered: bool = False,
    ) -> HeldPacket:
        """Build and judge a packet like `emit`, for `publish_held`. Raises EmitRefused."""
        kind = TYPE_OF_PAYLOAD.get(type(draft.payload))
        with (
            counted_emit(self._builder.agent_id, kind, is_held=True),
            in_span("send", kind, SpanKind.PRODUCER, attributes=_SENDING),
        ):
            built, publication = await self._prepared(draft, cause, ordinal, emission)
        emission.published()
        emission.answered(True)
        return HeldPacket(built, publication, is_remembered)

    async def refreshed(self, held: HeldPacket) -> HeldPacket:
        """Return a held packet that lives from now on, if it has lost a part of its time. Raises Retry."""
        packet, now = held.built.packet, datetime.now(UTC)
        if now - packet.created_at < (packet.expires - packet.created_at) / 10:
            return held
        built = Built(packet.model_copy(update={"created_at": now}), held.built.cause, held.built.ordinal)
        with in_span("send", packet.packet_type, SpanKind.PRODUCER, attributes=_SENDING):
            sealed = await sealed_to_fit(built.packet, None, self._claim_checks)
            return HeldPacket(built, self._publication(built, sealed), held.is_remembered)

    async def publish_held(self, held: HeldPacket) -> None:
        """Publish a packet that was held. Raises EmitUnconfirmed."""
        with counted_emit(self._builder.agent_id, held.built.packet.packet_type):
            await self._publish(held.publication)
        await self._pass_on(held.built, held.publication)

    async def accepted(self, built: Built) -> None:
        """Wait until the gate has accepted a packet of this agent that was emitted.

        The gate is asked by a repeat of the packet, which names the cause: one that was made again in another process
        has another time, and would be a conflict. Its answer is kept as that to a required ACK, so a handler that runs
        again finds it.

        Raises:
            EmitRefused: the gate has refused it.
            EmitTimeout: the gate has not accepted it within the time for an ACK: it is away, or holds the packet.
        """
        packet = built.packet
        sealed = await sealed_to_fit(packet, None, self._claim_checks)
        publication = self._publication(built, sealed)
        message = publication.message
        asking = replace(publication, message=replace(message, headers={**message.headers, headers.ASKS_VERDICT: True}))
        patience, pauses = self._settings.ack_timeout + self._settings.ack_grace, Backoff(FIRST_ASK, LONGEST_ASK)
        loop = asyncio.get_running_loop()
        due = 0.0

        async def look() -> Iterable[Packet]:
            nonlocal due
            known = list(await self._look_for_answers(packet))
            if not known and loop.time() >= due:  # a packet that is held is accepted later
                await self._publish(asking)
                due = loop.time() + pauses.take()
            return known

        with self._acknowledgements.expect(packet, of_gate=True) as expectation:
            for answer in await look():
                expectation.take(answer)
            await expectation.answered(patience, look)

    async def _pass_on(self, built: Built, publication: Publication) -> None:
        """Pass a packet that is out to a module of the agent, if that is its channel, in this process or another.

        The orchestrator gets it for the log.
        """
        packet = built.packet
        if _log.is_enabled_for(DEBUG):
            _log.debug("packet_emitted", **packet_ids(packet), cause=None if built.cause is None else str(built.cause))
        if packet.channel is not Channel.INTRA_AGENT:
            return
        if self._settings.worker_intra == "process":
            self._deliver_locally(packet)
        else:
            key = intra_key(is_urgent(packet.packet_type, packet.routing.priority))
            await self._publish(Publication(intra_exchange(packet.sender.agent_id), key, publication.message))

    async def _prepared(
        self, draft: Draft, cause: Packet | None, ordinal: int, emission: Emission
    ) -> tuple[Built, Publication]:
        try:
            built = self._builder.build(draft, cause, ordinal)
            own = None if self._builder.names_contract(built.packet) else self.contract
            sealed = await sealed_to_fit(built.packet, own, self._claim_checks)
        except EmitRefused:
            emission.criticised(False)
            raise
        emission.criticised(True)
        publication = self._publication(built, sealed)
        emission.built()
        return built, publication

    async def _answered(self, packet: Packet, expectation: Expectation, emission: Emission) -> None:
        try:
            patience = _gate_waits(packet, self.contract) + self._settings.ack_grace
            async with others_go_on():
                await expectation.answered(patience, partial(self._look_for_answers, packet))
        except (EmitRefused, EmitRejected, EmitTimeout):
            emission.answered(False)
            raise
        crash_point("worker.after_required_ack")

    async def _publish(self, publication: Publication) -> None:
        outbox, deadline = self._outbox, self._settings.publish_deadline
        if outbox is None or publication.exchange != INGRESS:
            await publish_confirmed(self._bus, publication, deadline)
        else:
            shard = int(publication.routing_key) % self._settings.shards
            async with outbox.carried(publication, shard) as carrying:
                await publish_confirmed(self._bus, carrying, deadline)
        self.last_emit = asyncio.get_running_loop().time()

    def _publication(self, built: Built, sealed: SealedPacket) -> Publication:
        packet = built.packet
        describe(packet)
        values: dict[str, HeaderValue] = {**current_trace()}
        if built.cause is not None and built.ordinal is not None:
            values |= {headers.CAUSE: str(built.cause), headers.ORDINAL: built.ordinal}
        if self._sign is not None:
            values[headers.SIGNATURE] = self._sign(sealed)
        message = Message(
            sealed.body,
            message_id=str(packet.packet_id),
            type=packet.packet_type.value,
            correlation_id=str(packet.trace.root_packet_id),
            user_id=self._bus.user,
            headers=values,
        )
        # Packets between an agent's own modules never pass the gate on their way: the orchestrator only logs them.
        exchange = RECEIPTS if packet.channel is Channel.INTRA_AGENT else INGRESS
        return Publication(exchange, str(slot_of(packet.trace.session_id)), message)


async def _nowhere(packet: Packet) -> Iterable[Packet]:
    """Find no answers: who has no inbox waits for none."""
    return ()


async def sealed_to_fit(packet: Packet, contract: Contract | None, claim_checks: ClaimChecks) -> SealedPacket:
    """Seal like seal_judged; the longest texts of a packet that is too large go to the artifact store.

    Raises:
        EmitRefused: the contract refuses it.
        Retry: the store cannot take the texts now.
    """
    try:
        return seal_judged(packet, contract)
    except EmitRefused as refused:
        if (refused.code, refused.path) != ("TOO_LARGE", "$"):
            raise
    return seal_judged(await claim_checks.check_in(packet), contract)


def seal_judged(packet: Packet, contract: Contract | None) -> SealedPacket:
    """Return the sealed packet if the local admit() lets it pass; nothing that needs a session or a registry is judged.

    Without a contract only its form is judged: the session has one that this worker does not know.

    Raises:
        EmitRefused: the contract refuses it.
    """
    try:
        sealed = seal(packet)
    except PacketRefused as refused:
        raise EmitRefused(refused.code, refused.path, refused.message) from refused
    if contract is None:
        return sealed
    refusal = admit(packet, None, Facts(now=packet.created_at), contract).refusal
    if refusal is not None:
        raise EmitRefused.of(refusal.document)
    return sealed


def _gate_waits(packet: Packet, contract: Contract) -> timedelta:
    """Return how long the orchestrator waits for the ACKs of a packet, all attempts together."""
    timeout_ms, retry_limit = packet.routing.ack_timeout_ms, packet.routing.retry_limit
    retries = contract.session.ack_retry_limit if retry_limit is None else retry_limit
    return timedelta(milliseconds=(timeout_ms or contract.session.ack_timeout_ms) * (1 + retries))
