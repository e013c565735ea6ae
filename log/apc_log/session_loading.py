"""A session as the log left it: what is loaded after a takeover or an eviction, bodies and open ends included."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec
import orjson

from apc_bus.telemetry import get_logger
from apc_contracts.contract.collection import Contracts, stored_contract
from apc_contracts.contract.contract import Contract, task_contract
from apc_contracts.judging.session_view import Identity, read_loop
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.limits import DocumentLimits
from apc_contracts.packet import CLAIM_PREFIX, defines, refers_to
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.session.document import decode_document
from apc_contracts.session.knowledge import recount_contents, rest
from apc_contracts.session.lifecycle import verification_needed
from apc_contracts.session.movement import Denial, Hop
from apc_contracts.session.promotion import completion_of
from apc_contracts.session.session import HeldPacket, OpenPacket, Progress, Session
from apc_contracts.vocabulary import (
    CONTROL_TYPES,
    ORCHESTRATOR,
    PRESENCE_SESSION,
    SUBSTRATE_RECIPIENT,
    PacketType,
    RunPhase,
)
from apc_contracts.wire.parsing import ReceivedPacket, parse_packet, read_packet
from apc_contracts.wire.receipts import EffectEntry
from apc_log.body_encryption import Connection, KeyRing, SealedContent, SubjectKey, is_sealed, key_id_of, require
from apc_log.heads import AnyConnection, LogRange, bounded, read_range


@dataclass(frozen=True, slots=True)
class Bodies:
    """The keys of some stored bodies, as far as they still exist."""

    keys: Mapping[UUID, SubjectKey]

    def content(self, stored: bytes) -> SealedContent | None:
        """Return what a sealed body holds; None when its subject was erased.

        Raises BodyUnreadable when it was altered.
        """
        key = self.keys.get(key_id_of(stored))
        return None if key is None else key.unseal_packet(stored)

    def received(self, stored: bytes) -> bytes | None:
        """Return the bytes as they were received; None when their subject was erased. Raises BodyUnreadable."""
        if not is_sealed(stored):
            return stored
        content = self.content(stored)
        return None if content is None else content.body


async def open_bodies(connection: Connection, ring: KeyRing | None, stored: Iterable[bytes | None]) -> Bodies:
    """Return the keys of those of these bodies that are sealed. Raises BodyUnreadable without the right master key."""
    ids = {key_id_of(body) for body in stored if body is not None and is_sealed(body)}
    return Bodies(await require(ring).by_id(connection, ids) if ids else {})


# How deliveries end whose packet was erased.

ERASED = "erased"
"""Why a delivery ended whose packet cannot be read any more."""

_WAYS_OUT = {
    "SCHEMA_VALIDATED": ("ttl_expired", "EXPIRED"),
    "ROUTED": ("ttl_expired", "EXPIRED"),
    "APPLIED": ("verification_fail", "REJECTED_POLICY"),
    "DEAD_LETTERED": ("discarded", "ARCHIVED"),
}
"""Where a delivery can rest -> how it ends when there is nothing left to deliver or to verify."""


def end_of_erased(session: Session, row: asyncpg.Record, now: datetime, contract: Contract) -> list[Hop]:
    """Return how one recipient's delivery of an erased packet ends; nothing when it has come to rest."""
    packet_id, recipient, attempt, state = row["packet_id"], row["recipient"], row["attempt"] or 1, row["state"]
    if row["shared_state"] == "SCHEMA_VALIDATED":  # it waits as a whole
        if row["place"] > 1:
            return []
        recipient, attempt, state = "", 1, row["shared_state"]
    state = state or "ROUTED"
    is_open = row["ended_attempt"] != row["attempt"] and not row["is_local"]
    is_resting = state == "APPLIED" and session.identities[packet_id].packet_type in contract.superseding.types
    if state in _WAYS_OUT and not is_resting:
        event, after = _WAYS_OUT[state]
    elif is_open:
        event, after = "expired", ""
    else:
        return []
    metadata = {"ended": "expired", "error": ERASED}
    return [Hop(packet_id, recipient, attempt, state, after, [event], [now], ORCHESTRATOR, metadata)]


# What an orchestrator that takes a shard has to look at: open sessions, and refusals whose NACK may not have gone out.

_log = get_logger("apc_orchestrator")

# A verification that was begun is taken up again, in an ended session too; no input need come after it.
OPEN_SESSIONS = """
SELECT session_id, document, is_terminal, open_deliveries > 0 OR apc_log.is_verifying(document) AS has_work
FROM apc_log.sessions WHERE shard = $1 AND (is_open OR apc_log.is_verifying(document))
"""
# Held, then refused, and not expired yet: the barrier that refused them may have been the last thing the shard did.
DENIED = """
SELECT packet.body_stored, hop.metadata -> 'refusal' AS refusal
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_events AS hop
  ON hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
 AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.metadata ? 'refusal'
WHERE packet.shard = $1 AND packet.verdict = 'held' AND packet.expires_at > $2::timestamptz
  AND packet.judged_at > $2::timestamptz - interval '1 day'
ORDER BY packet.seq
"""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that is not at its end, or that has deliveries on their way."""

    session_id: str
    is_terminal: bool
    has_work: bool
    """Deliveries on their way, or verifications that were begun."""
    next_deadline: datetime | None


async def open_sessions(pool: asyncpg.Pool, shard: int) -> list[OpenSession]:
    """Return the open sessions of a shard, with the deadline that each waits for."""
    sessions = []
    for row in await pool.fetch(OPEN_SESSIONS, shard):
        try:
            document = decode_document(row["document"])
        except msgspec.ValidationError as error:
            # One document that cannot be read must not keep the shard from all others.
            _log.error("session_unreadable", session_id=row["session_id"], reason=str(error))
            continue
        is_waiting = document.paused_at is None and document.deadlines
        due = min(document.deadlines.values()) if is_waiting else None
        sessions.append(OpenSession(row["session_id"], row["is_terminal"], row["has_work"], due))
    return sessions


async def unanswered_denials(
    pool: asyncpg.Pool, shard: int, now: datetime, limits: DocumentLimits, ring: KeyRing | None = None
) -> list[Denial]:
    """Return unexpired packets of the shard that were held and then refused, and not erased since."""
    async with pool.acquire() as connection:
        rows = await connection.fetch(DENIED, shard, now)
        bodies = await open_bodies(connection, ring, (row["body_stored"] for row in rows))
    limits = replace(limits, is_logged=True)
    readable = [(bodies.received(row["body_stored"]), orjson.loads(row["refusal"])) for row in rows]
    return [Denial(read_packet(body, limits), Refusal.of(why)) for body, why in readable if body is not None]


# A session from the log: once, at its first input after a takeover or an eviction, and before it is judged.

REFUSED_KEPT = 1000
"""Refused packets remembered under the name of a session that does not exist."""
DOCUMENT = "SELECT document, shard FROM apc_log.sessions WHERE session_id = $1"
_IDENTITIES = """
SELECT packet.packet_id, packet.packet_hash, ids.payload_hash, packet.packet_type, packet.sender_agent_id,
       packet.sender_swarm_id, packet.recipients, packet.facts ->> 'to' AS addressed, packet.cause_packet_id,
       packet.root_packet_id, packet.verdict, packet.refusal, packet.run_phase,
       packet.facts ->> 'in_phase' AS in_phase, packet.round, packet.generation,
       packet.step, packet.defines, packet.refers_to, packet.parent_packet_id, packet.facts ->> 'loop' AS loop,
       CASE WHEN packet.stored_hash <> packet.packet_hash THEN packet.body_stored END AS sealed
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_ids AS ids USING (session_id, packet_id)
WHERE packet.session_id = $1 /*within packet*/ /*within ids*/
ORDER BY packet.seq {}
"""
IDENTITIES = _IDENTITIES.format("")
UNKNOWN_SESSION_IDENTITIES = _IDENTITIES.format(f"DESC LIMIT {REFUSED_KEPT}")
PRESENCE_IDENTITIES = _IDENTITIES.replace("ORDER BY", "AND packet.shard = $2 ORDER BY").format("DESC LIMIT $3")
# What became of whole packets after their verdict: taken back, left without ground, or held and then routed or refused.
AFTERMATH = """
SELECT packet_id, to_state = 'RETRACTED' AS is_retracted, events = '{stale}' AS is_stale,
       metadata -> 'refusal' AS refusal, (metadata ->> 'replacement')::uuid AS replacement,
       (metadata #>> '{facts,session,step}')::bigint AS released_at
FROM apc_log.packet_events
WHERE session_id = $1 AND recipient = ''
  AND (to_state = 'RETRACTED' OR events = '{stale}' OR from_state = 'SCHEMA_VALIDATED') /*within packet_events*/
ORDER BY seq
"""
# What the rules of a team remember is in the bodies, and in the values that were read for them.
ACCEPTED = """
SELECT packet.packet_id, packet.body_stored, packet.user_id, coalesce(hop.occurred_at, packet.judged_at) AS accepted_at,
       coalesce(hop.rules, packet.facts -> 'rules') AS rules
FROM apc_log.agent_packets AS packet
LEFT JOIN LATERAL (
    SELECT occurred_at[array_length(occurred_at, 1)] AS occurred_at, metadata #> '{facts,rules}' AS rules
    FROM apc_log.packet_events
    WHERE session_id = $1 AND packet_id = packet.packet_id AND recipient = '' AND from_state = 'SCHEMA_VALIDATED'
      /*within packet_events*/
    ORDER BY seq LIMIT 1
) AS hop ON packet.verdict = 'held'
WHERE packet.session_id = $1 AND packet.verdict <> 'refused' AND packet.sender_agent_id <> $2
  /*within packet*/
ORDER BY accepted_at, packet.verdict = 'held', packet.seq
"""
# Packets whose machines all ended, and none of them in ARCHIVED.
ENDED = """
SELECT packet_id, min(to_state) AS state FROM apc_log.packet_events
WHERE session_id = $1 AND recipient <> '' AND to_state = ANY ($2::text[]) /*within packet_events*/
GROUP BY packet_id HAVING NOT bool_or(to_state = 'ARCHIVED')
"""
# The machine of each recipient by its last hop; an end of the delivery may stand in its own hop (to_state '').
# All recipients of a packet come when one of them is unfinished: what the others reached tells of its verification.
UNFINISHED = """
WITH machine AS (
    SELECT packet_id, recipient,
           (array_agg(to_state ORDER BY seq DESC) FILTER (WHERE to_state <> ''))[1] AS state,
           max(attempt) FILTER (WHERE attempt > 0) AS attempt,
           (array_agg(attempt ORDER BY seq DESC) FILTER (WHERE metadata ? 'ended'))[1] AS ended_attempt,
           (array_agg((metadata #>> '{retry,due_at}')::timestamptz ORDER BY seq DESC)
               FILTER (WHERE to_state = 'ROUTED'))[1] AS not_before,
           array_agg((metadata ->> 'given_up')::int) FILTER (WHERE metadata ? 'given_up') AS given_up,
           array_agg(attempt) FILTER (WHERE metadata ? 'late') AS late,
           bool_or('verification_pass' = ANY (events)) AS has_passed,
           bool_or('verification_fail' = ANY (events)) AS has_failed
    FROM apc_log.packet_events WHERE session_id = $1 /*within packet_events*/
    GROUP BY packet_id, recipient
), delivery AS (
    SELECT packet.seq, packet.packet_id, packet.round, packet.recipients, shared.state AS shared_state,
           recipient.name AS recipient, recipient.place, own.state, own.attempt, own.ended_attempt,
           own.given_up, own.late, own.not_before, own.has_passed OR shared.has_passed AS has_passed, own.has_failed,
           packet.facts ? 'held' AS was_paused, packet.facts -> 'rights' AS rights,
           packet.channel = 'INTRA_AGENT' OR recipient.name = ANY ($3::text[]) AS is_local,
           packet.body_stored
    FROM apc_log.agent_packets AS packet
    JOIN machine AS shared ON shared.packet_id = packet.packet_id AND shared.recipient = ''
    CROSS JOIN LATERAL unnest(packet.recipients) WITH ORDINALITY AS recipient(name, place)
    LEFT JOIN machine AS own ON own.packet_id = packet.packet_id AND own.recipient = recipient.name
    WHERE packet.session_id = $1 AND packet.verdict <> 'refused'
      AND shared.state IN ('SCHEMA_VALIDATED', 'ROUTED') /*within packet*/
), marked AS (
    SELECT delivery.*, bool_or(
        shared_state = 'SCHEMA_VALIDATED' OR state IS NULL OR state <> ALL ($2::text[])
        OR (NOT is_local AND ended_attempt IS DISTINCT FROM attempt)
    ) OVER (PARTITION BY packet_id) AS is_unfinished
    FROM delivery
)
SELECT * FROM marked WHERE is_unfinished ORDER BY seq, place
"""
# Hops of effects number themselves below 0, beside the attempts of their delivery.
EFFECTS = """
SELECT packet_id, recipient, metadata #>> '{effect,key}' AS key, (metadata #>> '{effect,claim}')::uuid AS claim,
       metadata #>> '{effect,entry}' AS entry
FROM apc_log.packet_events WHERE session_id = $1 AND attempt < 0 /*within packet_events*/ ORDER BY seq
"""
ASKED = (
    "SELECT packet_id, body_stored FROM apc_log.agent_packets "
    "WHERE session_id = $1 AND packet_id = ANY ($2::uuid[]) /*within agent_packets*/"
)
CONTRACT = "SELECT document FROM apc_log.contracts WHERE contract_hash = $1"
LOCAL_RECIPIENTS = [ORCHESTRATOR, SUBSTRATE_RECIPIENT]
"""The orchestrator applies these itself; their deliveries have no end to wait for."""


async def load_session(
    pool: asyncpg.Pool,
    session_id: str,
    contracts: Contracts,
    ring: KeyRing | None = None,
    erased: list[Hop] | None = None,
    shard: int | None = None,
) -> Session | dict[UUID, Identity] | None:
    """Return the session as the log left it, or what was refused under its name when there is none.

    Args:
        shard: in which it must be; None is returned for a session of another.
        ring: reads encrypted bodies.
        erased: gets the hops that end what is left of packets whose subject was erased; they are not logged yet.

    Raises:
        BodyUnreadable: there are encrypted bodies and not their master key.
    """
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        stored = await connection.fetchrow(DOCUMENT, session_id)
        if stored is None:
            rows = await connection.fetch(UNKNOWN_SESSION_IDENTITIES, session_id)
            return await _identities_of(connection, ring, rows)
        if shard not in (None, stored["shard"]):
            return None
        document = decode_document(stored["document"])
        contract = await _contract_of(connection, document.contract_hash, contracts)
        session = Session(document, contract.selection.verified_score_epsilon)
        session.open_dossier(contract.team)
        bounds = await read_range(connection, [session_id])
        rows = await connection.fetch(*bounded(IDENTITIES, bounds, session_id))
        bodies = await open_bodies(connection, ring, (row["sealed"] for row in rows))
        _add_identities(session, rows, bodies, contract)
        # Now: a packet counts where it came, and the aftermath tells where a held one was released.
        recount_contents(session, contract)
        _add_aftermath(session, await connection.fetch(*bounded(AFTERMATH, bounds, session_id)))
        terminal = sorted(contract.machine("packet_lifecycle").terminal)
        rows = await connection.fetch(*bounded(UNFINISHED, bounds, session_id, terminal, LOCAL_RECIPIENTS))
        bodies = await open_bodies(connection, ring, (row["body_stored"] for row in rows))
        ended = _add_unfinished(session, rows, bodies, contract)
        if erased is not None:
            erased += ended
        _add_ends(session, await connection.fetch(*bounded(ENDED, bounds, session_id, terminal)))
        await _add_effects(connection, session, bounds)
        await _add_answer_schemas(connection, session, ring, contract, bounds)
        await _fill_dossier(connection, session, ring, contract, bounds)
    return session


async def newest_presence(
    pool: asyncpg.Pool, shard: int, most: int, ring: KeyRing | None = None
) -> dict[UUID, Identity]:
    """Return the newest packets of the presence session in a shard, at most `most`, the oldest of them first.

    Raises:
        BodyUnreadable: there are encrypted bodies and not their master key.
    """
    async with pool.acquire() as connection:
        rows = await connection.fetch(PRESENCE_IDENTITIES, PRESENCE_SESSION, shard, most)
        return await _identities_of(connection, ring, rows)


async def _identities_of(
    connection: Connection, ring: KeyRing | None, newest_first: Sequence[asyncpg.Record]
) -> dict[UUID, Identity]:
    bodies = await open_bodies(connection, ring, (row["sealed"] for row in newest_first))
    return {row["packet_id"]: _identity(row, _content(row, bodies)) for row in reversed(newest_first)}


async def contract_of_session(pool: asyncpg.Pool, digest: str, default: Contract) -> Contract:
    """Return the contract that a session was opened under (SHA-256 in hex), as the log holds it; else the default."""
    return await _contract_of(pool, digest, Contracts(default, (task_contract(),)))


async def _contract_of(connection: AnyConnection | asyncpg.Pool, digest: str, contracts: Contracts) -> Contract:
    """Return the contract that a session was opened under, from the log if need be; the default as the last resort."""
    known = contracts.of_hash(digest)
    if known is not None:
        return known
    body = await connection.fetchval(CONTRACT, bytes.fromhex(digest))
    stored = None if body is None else stored_contract(body)
    return contracts.default if stored is None else contracts.keep(stored)


def _add_identities(session: Session, rows: Iterable[asyncpg.Record], bodies: Bodies, contract: Contract) -> None:
    for row in rows:
        content = _content(row, bodies)
        identity = _identity(row, content)
        session.remember(row["packet_id"], identity)
        if identity.refusal is None:
            session.roots.add(identity.root)
            _add_references(session, row, content, contract)


def _content(row: asyncpg.Record, bodies: Bodies) -> SealedContent | None:
    """Return the content of an encrypted body; None if it is stored as received or was erased."""
    return None if row["sealed"] is None else bodies.content(row["sealed"])


def _limits(contract: Contract) -> DocumentLimits:
    bounds = contract.limits
    return DocumentLimits(bounds.packet_bytes, bounds.nesting_levels, bounds.nodes, is_logged=True)


def _add_references(session: Session, row: asyncpg.Record, content: SealedContent | None, contract: Contract) -> None:
    names, refers = row["defines"] or (), row["refers_to"] or ()
    if content is not None:  # the database could not derive them
        packet = parse_packet(content.body, _limits(contract))
        names, refers = defines(packet), refers_to(packet)
    session.claims.update(name.removeprefix(CLAIM_PREFIX) for name in names if name.startswith(CLAIM_PREFIX))
    packet_type = PacketType(row["packet_type"])
    if packet_type not in contract.retraction.rests_on_nothing:
        session.grounds.note(row["packet_id"], packet_type, row["parent_packet_id"], refers, names)


def _identity(row: asyncpg.Record, content: SealedContent | None) -> Identity:
    """Return a packet's identity. Hashes of an erased packet stay keyed: sending it again meets a taken id."""
    refusal, recipients = row["refusal"], tuple(row["recipients"])
    packet_hash, payload_hash = row["packet_hash"], row["payload_hash"]
    if content is not None:
        packet_hash, payload_hash, refusal = content.packet_hash, content.payload_hash, content.refusal
    return Identity(
        packet_hash=packet_hash,
        payload_hash=payload_hash,
        packet_type=PacketType(row["packet_type"]),
        sender=row["sender_agent_id"],
        swarm_id=row["sender_swarm_id"],
        recipients=recipients,
        addressed=recipients if row["addressed"] is None else (row["addressed"],),
        cause=row["cause_packet_id"],
        root=row["root_packet_id"],
        verdict=VerdictKind(row["verdict"]),
        refusal=None if refusal is None else Refusal.of(orjson.loads(refusal)),
        run_phase=_phase(row),
        round=row["round"],
        generation=row["generation"],
        step=row["step"],
        chain=None if row["loop"] is None else read_loop(orjson.loads(row["loop"])).chain,
    )


def _phase(row: asyncpg.Record) -> RunPhase:
    """Return the phase as `advance` remembers it: for a control packet that of the session, not the one it named."""
    is_control = PacketType(row["packet_type"]) in CONTROL_TYPES
    return RunPhase(row["in_phase"] or row["run_phase"] if is_control else row["run_phase"])


def _add_aftermath(session: Session, rows: Iterable[asyncpg.Record]) -> None:
    for row in rows:
        identity = session.identities[row["packet_id"]]
        if row["is_retracted"]:
            identity.retracted = True
            if row["replacement"] is not None:
                session.grounds.replaced[row["packet_id"]] = row["replacement"]
        elif row["is_stale"]:
            identity.stale = True
        elif row["refusal"] is not None:
            identity.refusal = Refusal.of(orjson.loads(row["refusal"]))
        else:
            identity.step = row["released_at"]


def _add_unfinished(session: Session, rows: Iterable[asyncpg.Record], bodies: Bodies, contract: Contract) -> list[Hop]:
    """Return the hops that end what was erased."""
    limits, now = _limits(contract), datetime.now(UTC)
    ended: list[Hop] = []
    unverified: set[UUID] = set()
    rights: dict[UUID, frozenset[str]] = {}
    for row in rows:
        opened = session.open.get(row["packet_id"])
        rights[row["packet_id"]] = frozenset(orjson.loads(row["rights"] or "[]"))
        body = bodies.received(row["body_stored"])
        if body is None:
            hops = end_of_erased(session, row, now, contract)
            ended += hops
            unverified.update(hop.packet_id for hop in hops if hop.from_state == "APPLIED" and hop.to_state)
            continue
        received = opened.received if opened is not None else read_packet(body, limits)
        if row["shared_state"] == "SCHEMA_VALIDATED":
            _add_held(session, row, received)
        else:
            _add_open(session, row, received)
    for opened in session.open.values():
        _restore_rest(session, opened, contract)
        rest(session, opened, rights[opened.packet.packet_id], contract)
    session.document.verifying = max(0, session.document.verifying - len(unverified))
    return ended


async def _add_effects(connection: Connection, session: Session, bounds: LogRange | None) -> None:
    for row in await connection.fetch(*bounded(EFFECTS, bounds, session.session_id)):
        entry = EffectEntry(row["entry"])
        session.effects.note(row["packet_id"], row["recipient"], row["key"], row["claim"], entry)


async def _add_answer_schemas(
    connection: Connection, session: Session, ring: KeyRing | None, contract: Contract, bounds: LogRange | None
) -> None:
    """Remember what answers to open questions have to fit; of a question whose subject was erased nobody knows."""
    asked = [] if session.work is None else [one for one, open_ in session.work.questions.items() if not open_.returns]
    rows = await connection.fetch(*bounded(ASKED, bounds, session.session_id, asked)) if asked else ()
    bodies = await open_bodies(connection, ring, (row["body_stored"] for row in rows))
    for row in rows:
        body = bodies.received(row["body_stored"])
        payload = None if body is None else parse_packet(body, _limits(contract)).payload
        question = payload.question if isinstance(payload, SignalPayload) else None
        if question is not None and question.answer_schema is not None:
            asker = session.identities[row["packet_id"]].sender
            session.keep_answer_schema(row["packet_id"], asker, question.answer_schema)


async def _fill_dossier(
    connection: Connection, session: Session, ring: KeyRing | None, contract: Contract, bounds: LogRange | None
) -> None:
    """Remember what rules read; a packet whose subject was erased counts as evidence for nothing any more."""
    dossier, session_id = session.dossier, session.session_id
    if dossier is None:
        return
    rows = await connection.fetch(*bounded(ACCEPTED, bounds, session_id, ORCHESTRATOR))
    bodies = await open_bodies(connection, ring, (row["body_stored"] for row in rows))
    for row in rows:
        body, values = bodies.received(row["body_stored"]), orjson.loads(row["rules"] or "{}")
        identity, is_accepted = session.identities[row["packet_id"]], session.is_accepted(row["packet_id"])
        if body is None:
            if is_accepted:
                dossier.use_unread(identity.sender, row["packet_id"], values)
            continue
        packet = parse_packet(body, _limits(contract))
        identity.said = dossier.said(packet, row["user_id"])
        if is_accepted:
            dossier.accept(packet, row["user_id"], values, row["accepted_at"])


def _add_ends(session: Session, rows: Iterable[asyncpg.Record]) -> None:
    for row in rows:
        identity = session.identities[row["packet_id"]]
        if row["packet_id"] not in session.open and not identity.retracted:
            identity.ended = row["state"]


def _add_held(session: Session, row: asyncpg.Record, received: ReceivedPacket) -> None:
    # Held before the pause it waits for its barrier; held by the pause it was not judged yet.
    is_paused = session.is_paused and row["was_paused"]
    session.held[row["packet_id"]] = HeldPacket(received, tuple(row["recipients"]), row["round"], is_paused)


def _add_open(session: Session, row: asyncpg.Record, received: ReceivedPacket) -> None:
    opened = session.open.get(row["packet_id"])
    if opened is None:
        opened = session.open[row["packet_id"]] = OpenPacket(received, row["round"], {})
    attempt, state = row["attempt"] or 1, row["state"] or "ROUTED"
    is_confirmed = row["is_local"] and state != "ROUTED"
    is_open = row["ended_attempt"] != attempt and not is_confirmed
    given_up = set(row["given_up"] or ()) - set(row["late"] or ())
    not_before = row["not_before"] if state == "ROUTED" else None
    opened.recipients[row["recipient"]] = Progress(state, attempt, is_open, given_up, not_before)
    if row["has_failed"]:
        opened.verification = "failed"
    elif row["has_passed"]:
        opened.verification, opened.is_evidence_counted = "passed", True
    if is_open:
        recipient = row["recipient"]
        session.outstanding[recipient] = session.outstanding.get(recipient, 0) + 1


def _restore_rest(session: Session, opened: OpenPacket, contract: Contract) -> None:
    """Restore verification and rest, as the states of the machines show them."""
    opened.completion = completion_of(session, opened, contract)
    is_applied = any(progress.state == "APPLIED" for progress in opened.recipients.values())
    if is_applied and not opened.verification:
        # What does not rest at APPLIED is there only while it is verified.
        is_resting = opened.packet.packet_type in contract.superseding.types
        is_pending = not is_resting or verification_needed(session, opened.received, contract) is not None
        opened.verification = "pending" if is_pending else "passed"
        opened.is_evidence_counted = not is_pending
