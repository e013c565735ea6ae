"""The tools that act: off by default, done as the caller, and only once a person has confirmed what was shown to them.

The confirmation is an elicitation: the client shows a text, and the answer has to carry the hash of that text (of a
question: its payload hash, which the ANSWER in the log names). Before the act the hash is computed again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from hashlib import sha256
from typing import Annotated, Any, Literal, ParamSpec
from uuid import UUID

import orjson
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ElicitationResult, Resolve
from pydantic import BaseModel, Field, JsonValue, create_model

from apc_contracts.contract_model import SHA256_PATTERN
from apc_contracts.payloads.by_type import MAX_TEXT
from apc_contracts.wire.receipts import MAX_EFFECT_KEY
from apc_log.queries import DeadDelivery, list_dead
from apc_log.queries.questions import list_questions
from apc_mcp.answers import LIMIT_BYTES, refused
from apc_mcp.door import ACTS, Door, LogServer, add_tool
from apc_web.access import AccountRole
from apc_web.acts import (
    ActOutcome,
    AnswerRequest,
    DeliveryName,
    SettleEffectRequest,
    SettleRequest,
    SignalRequest,
    answer,
    require_operator,
    require_seen,
    settle,
    settle_effect,
    signal,
)
from apc_web.errors import ApiError, not_found
from apc_web.route_services import Acts
from apc_web.runs import place_of

Calling = Context[Door, Any]
Parameters = ParamSpec("Parameters")
_NAME = r"^[^\x00]{1,256}$"
_HASH = "The hash of what is shown; leave it as it is."


class Confirmation(BaseModel):
    """What comes back with a person's yes."""

    seen: str = Field(pattern=SHA256_PATTERN, description=_HASH)


Confirmed = ElicitationResult[Confirmation]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a person is asked to confirm, and the hash of it."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str, digest: str | None = None) -> "Shown":
        """Return what is shown; without a digest it is that of the text. Raises ToolError: too long to be read."""
        if len(text.encode()) > LIMIT_BYTES:
            raise ToolError(f"TOO_LONG: more than {LIMIT_BYTES} bytes to confirm: act in the web console")
        digest = digest or sha256(text.encode()).hexdigest()
        return cls(f"{text}\n\nhash {digest}", digest)

    def asked(self) -> Elicit[Confirmation]:
        """Return the question to the person; a form that the client fills in has the hash already."""
        seen = Field(pattern=SHA256_PATTERN, description=_HASH, json_schema_extra={"default": self.digest})
        form = create_model("Confirmation", __base__=Confirmation, seen=(str, seen))
        return Elicit(self.text, form)

    def require(self, confirmed: Any) -> None:
        """Raise ToolError unless a person has said yes to exactly this."""
        if not isinstance(confirmed, AcceptedElicitation):
            raise ToolError("NOT_CONFIRMED: nobody has confirmed it: nothing was done")
        if confirmed.data.seen != self.digest:
            raise ToolError("NOT_SEEN: confirmed with another hash than that of what was shown: nothing was done")


def door_of(context: Calling) -> tuple[Door, Acts]:
    """Return the door of a request and its acts, for a caller who may operate. Raises ToolError, ApiError (403)."""
    door: Door = context.request_context.lifespan_context
    door.as_caller(AccountRole.OPERATOR)
    if door.acts is None:
        raise ApiError(403, "NO_ACTS", "this server only reads: start it with --acts")
    return door, door.acts


def asking(
    shown: Callable[Parameters, Awaitable[Shown]],
) -> Callable[Parameters, Awaitable[Elicit[Confirmation]]]:
    """Return the resolver that shows something to a person and asks for their yes."""

    @wraps(shown)
    async def ask(*arguments: Parameters.args, **named: Parameters.kwargs) -> Elicit[Confirmation]:
        try:
            return (await shown(*arguments, **named)).asked()
        except ToolError:
            raise
        except Exception as error:
            raise refused(error, shown.__name__) from None

    ask.__annotations__["return"] = Elicit[Confirmation]
    return ask


def _done(outcome: ActOutcome) -> dict[str, Any]:
    """Return what became of an act: what the gate and this server say of it."""
    return {"verdict": outcome.verdict, "detail": outcome.detail}


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


# Answer what an agent asks people.

Question = Annotated[UUID, Field(description="The question, as `approvals` lists it.")]
Seen = Annotated[str, Field(pattern=SHA256_PATTERN, description="Its `payload_hash`: what is answered.")]
AnswerAct = Annotated[Literal["approve", "deny"], Field(description="What you say.")]
Note = Annotated[str | None, Field(max_length=MAX_TEXT, description="The reason, which the log keeps.")]
Fields = Annotated[
    dict[str, JsonValue] | None, Field(description="The fields of a question with answer_schema; only to approve it.")
]


async def shown_question(
    ctx: Calling, packet_id: UUID, act: str, seen: str, note: str | None, fields: dict[str, JsonValue] | None
) -> Shown:
    """Return a question as a person sees it. Raises ApiError: none, another hash, or one that cannot be read here."""
    door, acts = door_of(ctx)
    await require_operator(acts)
    found = await list_questions(door.reading.pool, packet_id=packet_id, limit=1)
    if not found:
        raise not_found(f"open question {packet_id}", "the tool `approvals` lists them", "packet_id")
    question = found[0]
    if act == "approve":
        await require_seen(door.reading, packet_id, seen)
    elif question.payload_hash != seen:
        raise ApiError(409, "NOT_SEEN", "seen: the question has another payload_hash: read it again", "seen")
    lines = [f"{act.capitalize()} what {question.asker} asks in session {question.session_id}?"]
    if question.denial:
        lines.append(f"{question.denial[0].upper()}{question.denial[1:]}.")
    lines += ["It has written:", _quoted(question.text or "(encrypted or erased)")]
    if question.content is not None:
        lines += ["Its data:", _quoted(orjson.dumps(question.content, option=orjson.OPT_INDENT_2).decode())]
    if fields is not None:
        lines += ["Your fields:", _quoted(orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode())]
    lines.append(f"Reason: {note or 'none'}")
    return Shown.of("\n".join(lines), question.payload_hash)


async def answer_question(
    ctx: Calling,
    confirmed: Annotated[Confirmed, Resolve(asking(shown_question))],
    packet_id: Question,
    act: AnswerAct,
    seen: Seen,
    note: Note = None,
    fields: Fields = None,
) -> dict[str, Any]:
    """Approve or deny what an agent asks people, in the name of the caller; a person confirms it first."""
    door, acts = door_of(ctx)
    shown = await shown_question(ctx, packet_id, act, seen, note, fields)
    shown.require(confirmed)
    request = AnswerRequest(note=note, seen=shown.digest, answer=fields)
    return _done(await answer(acts, door.reading, packet_id, act, request))


# Pause, resume and stop a session.

SignalAct = Annotated[Literal["pause", "resume", "stop"], Field(description="stop ends it permanently.")]
Session = Annotated[str, Field(pattern=_NAME, description="A session.")]


async def shown_signal(ctx: Calling, session_id: str, act: str, reason: str | None) -> Shown:
    """Return what a signal would do to a session as it is now. Raises ApiError."""
    door, acts = door_of(ctx)
    await require_operator(acts)
    document = (await place_of(door.reading.pool, session_id)).document
    state = f"paused in {document.state}" if document.paused_at is not None else document.state
    text = f"{act.capitalize()} session {session_id} of run {document.run_id}? It is {state}."
    return Shown.of(f"{text}\nReason: {reason or 'none'}")


async def signal_session(
    ctx: Calling,
    confirmed: Annotated[Confirmed, Resolve(asking(shown_signal))],
    session_id: Session,
    act: SignalAct,
    reason: Note = None,
) -> dict[str, Any]:
    """Pause, resume or stop a session; a person confirms it first."""
    door, acts = door_of(ctx)
    (await shown_signal(ctx, session_id, act, reason)).require(confirmed)
    return _done(await signal(acts, door.reading, session_id, act, SignalRequest(reason=reason)))


# Requeue or discard a dead letter.

DeadAct = Annotated[Literal["requeue", "discard"], Field(description="Deliver it again, or archive it.")]
DeadPacket = Annotated[UUID, Field(description="The packet, as `dead_letters` lists it.")]
Recipient = Annotated[str, Field(pattern=_NAME, description="Whose delivery it is.")]


async def _dead_letter(door: Door, packet_id: UUID, session_id: str, recipient: str) -> DeadDelivery:
    pool = door.reading.pool
    rows = await list_dead(pool, session_id=session_id, recipient=recipient, packet_ids=[packet_id], limit=1)
    if not rows:
        raise not_found(f"dead letter {packet_id} of {recipient}", "the tool `dead_letters` lists them", "packet_id")
    return rows[0]


def _about(row: DeadDelivery, act: str, note: str | None) -> Shown:
    text = f"{act.capitalize()} the {row.packet_type} {row.packet_id} of session {row.session_id} for {row.recipient}?"
    why = f"It died in attempt {row.attempt}:\n{_quoted(row.reason or 'for an unknown reason')}"
    return Shown.of(f"{text}\n{why}\nReason: {note or 'none'}")


async def shown_dead_letter(
    ctx: Calling, packet_id: UUID, session_id: str, recipient: str, act: str, note: str | None
) -> Shown:
    """Return a dead letter as a person sees it. Raises ApiError."""
    door, acts = door_of(ctx)
    await require_operator(acts)
    return _about(await _dead_letter(door, packet_id, session_id, recipient), act, note)


async def settle_dead_letter(
    ctx: Calling,
    confirmed: Annotated[Confirmed, Resolve(asking(shown_dead_letter))],
    packet_id: DeadPacket,
    session_id: Session,
    recipient: Recipient,
    act: DeadAct,
    note: Note = None,
) -> dict[str, Any]:
    """Deliver a dead letter again, or archive it, which needs a note; a person confirms it first."""
    door, acts = door_of(ctx)
    row = await _dead_letter(door, packet_id, session_id, recipient)
    _about(row, act, note).require(confirmed)
    named = DeliveryName(packet_id=packet_id, session_id=session_id, recipient=recipient, attempt=row.attempt)
    return _done(await settle(acts, act, SettleRequest(deliveries=[named], note=note)))


# Settle an effect whose outcome is unknown.

Agent = Annotated[str, Field(pattern=_NAME, description="The agent whose handler it is.")]
EffectKey = Annotated[str, Field(min_length=1, max_length=MAX_EFFECT_KEY, description="As `effects` lists it.")]
IsMade = Annotated[bool, Field(description="True: it has happened. False: it has not, the next attempt makes it.")]
Result = Annotated[JsonValue, Field(description="What `ctx.once` returns for it from now on; of one that was made.")]


async def shown_effect(
    ctx: Calling, packet_id: UUID, agent_id: str, key: str, is_made: bool, result: JsonValue
) -> Shown:
    """Return what would be said of an effect. Raises ApiError."""
    _, acts = door_of(ctx)
    await require_operator(acts)
    said = "has happened" if is_made else "has not happened, so that the next attempt makes it"
    text = f"Say that this effect of {agent_id} for packet {packet_id} {said}?\n{_quoted(key)}"
    given = f"\nResult:\n{_quoted(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())}" if is_made else ""
    return Shown.of(text + given)


async def settle_unknown_effect(
    ctx: Calling,
    confirmed: Annotated[Confirmed, Resolve(asking(shown_effect))],
    packet_id: Annotated[UUID, Field(description="The packet whose handler made the effect.")],
    agent_id: Agent,
    key: EffectKey,
    is_made: IsMade,
    result: Result = None,
) -> dict[str, Any]:
    """Settle an effect whose outcome is unknown: it was made, with a result, or not; a person confirms it first."""
    _, acts = door_of(ctx)
    (await shown_effect(ctx, packet_id, agent_id, key, is_made, result)).require(confirmed)
    request = SettleEffectRequest(packet_id=packet_id, agent_id=agent_id, key=key, is_made=is_made, result=result)
    return _done(await settle_effect(acts, request))


def add_acting_tools(server: LogServer, door: Door) -> None:
    """Add the tools that act."""
    for function in (answer_question, signal_session, settle_dead_letter, settle_unknown_effect):
        add_tool(server, door, function, AccountRole.OPERATOR, ACTS)
