"""A task as the log tells it: its state, history, artifacts, and the events of its stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from a2a.types.a2a_pb2 import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Value
from pydantic import BaseModel, JsonValue, ValidationError

from apc_a2a.messages import A2AArtifact, A2AReply
from apc_agents.typed import schema_of
from apc_client import SessionEvent, SessionStatus
from apc_contracts.identity.registry import CALLER
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, MessagePayload, Result, SignalPayload
from apc_contracts.payloads.session_signals import ROLE_PREFIX
from apc_contracts.vocabulary import CommitmentLevel, Signal
from apc_log.queries.questions import QuestionRow

TYPED = "urn:apc-bus:a2a:packets:v1"
"""Extension: the schema of the input, and results as typed data."""
REPEATS = "urn:apc-bus:a2a:repeats:v1"
"""Extension: a message that is sent again is the same task."""
TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
NAMESPACE = UUID("6b7b5d2e-0f0e-4b55-9a7e-2f1f7f0c1a2a")
"""Of ids that follow from something: those of status messages from task and state."""
_CANCELLED = "CANCEL by "
_RESULT = "result"
ATTACHED = "a2a"
"""Key of the foreign message in a packet's metadata."""


@dataclass(slots=True)
class View:
    """A task at one moment: the task, the artifacts in the order of their events, and the message in its place."""

    task: Task
    artifacts: list[TaskArtifactUpdateEvent] = field(default_factory=list)
    reply: Message | None = None

    @property
    def state(self) -> TaskState:
        """Where it stands."""
        return self.task.status.state

    @property
    def status_key(self) -> str:
        """Tells one status from the next."""
        return f"{self.state} {self.task.status.message.message_id}"

    @property
    def status_event(self) -> TaskStatusUpdateEvent:
        """The event of its status."""
        task = self.task
        return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def submitted(task_id: str, context_id: str) -> View:
    """Return a task whose start the gate has not judged yet."""
    state = TaskState.TASK_STATE_SUBMITTED
    return View(Task(id=task_id, context_id=context_id, status=TaskStatus(state=state)))


def view_of(
    status: SessionStatus, events: Iterable[SessionEvent], questions: Sequence[QuestionRow], person: str
) -> View:
    """Return the task that a session is, for one caller.

    Args:
        status: of the session.
        events: its packets, at least as new as the status.
        questions: its open ones, of everybody.
        person: the caller, who sees the questions to it alone.
    """
    fold = _Fold(status, person)
    for event in events:
        fold.take(event)
    return fold.view([one for one in questions if person in one.may_answer])


class _Fold:
    """Reads the packets of a session in their order."""

    def __init__(self, status: SessionStatus, person: str) -> None:
        self._status = status
        self._person = person
        self._task = Task(id=status.session_id, context_id=status.run_id)
        self._view = View(self._task)
        self._refused: SessionEvent | None = None
        self._reply: A2AReply | None = None
        self._done: UUID | None = None

    def take(self, event: SessionEvent) -> None:
        packet, is_opener = event.packet, event.sender == self._status.opener
        if event.verdict == "refused":
            self._refused = self._refused or (event if is_opener and event.packet_type == "MESSAGE" else None)
            return
        if packet is None or event.verdict != "accepted":
            return
        match packet.payload:
            case MessagePayload() as payload if is_opener:
                self._add(_foreign(packet, payload), Role.ROLE_USER)
            case MessagePayload(schema_id=schema_id) as payload if schema_id == schema_of(A2AArtifact):
                self._show(payload)
            case SignalPayload(signal=Signal.ASK) as payload if payload.question and self._is_asked(packet):
                asked = payload.model_dump(mode="json")["question"]
                self._add(_question(event.packet_id, asked["text"], asked.get("content"), asked.get("answer_schema")))
            case SignalPayload(signal=Signal.ANSWER) as payload if payload.answer and event.sender == self._person:
                note = payload.answer.note or payload.answer.outcome.value
                self._add(_foreign(packet, None, note), Role.ROLE_USER)
            case DecisionPayload(commitment_level=CommitmentLevel.DONE, result=Result() as result):
                self._end(event.packet_id, result)

    def _is_asked(self, packet: Packet) -> bool:
        return any(one.agent_id in (self._person, f"{ROLE_PREFIX}{CALLER}") for one in packet.recipients)

    def _add(self, message: Message, role: Role = Role.ROLE_AGENT) -> None:
        message.role, message.task_id, message.context_id = role, self._task.id, self._task.context_id
        self._task.history.append(message)

    def _show(self, payload: MessagePayload) -> None:
        shown = _read(A2AArtifact, payload.model_dump(mode="json")["content"])
        if shown is not None:
            artifact = Artifact(artifact_id=shown.artifact_id, parts=parts_of(shown.parts))
            self._put(artifact, append=shown.append, last=shown.last)

    def _put(self, artifact: Artifact, *, append: bool = False, last: bool = True) -> None:
        known = next((one for one in self._task.artifacts if one.artifact_id == artifact.artifact_id), None)
        if known is not None and append:
            known.parts.extend(artifact.parts)
        elif known is not None:
            known.CopyFrom(artifact)
        else:
            self._task.artifacts.append(artifact)
        self._view.artifacts.append(
            TaskArtifactUpdateEvent(
                task_id=self._task.id,
                context_id=self._task.context_id,
                artifact=artifact,
                append=append and known is not None,
                last_chunk=last,
            )
        )

    def _end(self, packet_id: UUID, result: Result) -> None:
        """Keep what the session ends with; a review may send it back, and another one follows."""
        self._done, content = packet_id, result.model_dump(mode="json")["content"]
        self._reply = _read(A2AReply, content) if result.schema_id == schema_of(A2AReply) else None
        if self._reply is None and self._status.state == "CLOSED":
            text = _text_in(content)
            parts = [*([Part(text=text)] if text else []), data_part(content)]
            artifact = Artifact(artifact_id=_RESULT, name=result.schema_id, parts=parts, extensions=[TYPED])
            self._put(artifact)

    def view(self, asked: Sequence[QuestionRow]) -> View:
        """Return the task, with its state."""
        status = self._status
        state, parts = self._state()
        if asked and not status.is_terminal:
            one = asked[0]
            state = TaskState.TASK_STATE_INPUT_REQUIRED
            message = _question(one.packet_id, one.text or "", one.content, one.answer_schema)
        else:
            name = f"{status.session_id} {state} {self._done or ''}"
            message = Message(message_id=str(uuid5(NAMESPACE, name)), parts=parts)
        self._task.status.state = state
        self._task.status.timestamp.FromDatetime(status.updated_at)
        if message.parts:
            message.role, message.task_id, message.context_id = Role.ROLE_AGENT, self._task.id, self._task.context_id
            self._task.status.message.CopyFrom(message)
        if self._reply is not None and self._reply.as_message and state == TaskState.TASK_STATE_COMPLETED:
            self._view.reply = Message(
                message_id=str(self._done), role=Role.ROLE_AGENT, context_id=self._task.context_id, parts=parts
            )
        return self._view

    def _state(self) -> tuple[TaskState, list[Part]]:
        status, reason = self._status, self._status.halt_reason or "stopped"
        if not status.is_terminal:
            is_open = status.state == "SESSION_OPEN"
            return TaskState.TASK_STATE_SUBMITTED if is_open else TaskState.TASK_STATE_WORKING, []
        if status.state != "HALTED":
            is_no = self._reply is not None and self._reply.rejected
            parts = [] if self._reply is None else parts_of(self._reply.parts)
            return TaskState.TASK_STATE_REJECTED if is_no else TaskState.TASK_STATE_COMPLETED, parts
        if self._refused is not None:
            return TaskState.TASK_STATE_REJECTED, _refusal_parts(self._refused)
        if reason.startswith(_CANCELLED):
            return TaskState.TASK_STATE_CANCELED, []
        return TaskState.TASK_STATE_FAILED, [Part(text=reason)]


def _refusal_parts(event: SessionEvent) -> list[Part]:
    given = event.refusal or {}
    refusal = {key: given[key] for key in ("code", "path", "message", "remedy") if given.get(key)}
    return [Part(text=str(refusal.get("message") or event.refusal_code)), data_part(refusal)]


def _read(model: type[BaseModel], content: Any) -> Any:
    """Return a model of ours; None for content that does not fit it: an older release wrote it, say."""
    try:
        return model.model_validate(content)
    except ValidationError:
        return None


def _foreign(packet: Packet, payload: MessagePayload | None, text: str = "") -> Message:
    """Return the client's message as it came; of an input that came another way, the content."""
    kept = (packet.metadata or {}).get(ATTACHED)
    fields: dict[str, Any] = dict(packet.model_dump(mode="json")["metadata"][ATTACHED]) if kept else {}
    if "parts" not in fields:
        content = None if payload is None else payload.model_dump(mode="json")["content"]
        is_whole = isinstance(content, dict) and payload is not None and payload.schema_id == "a2a-message/1"
        fields["parts"] = (
            content["parts"] if is_whole and content else [{"data": content}] if content else [{"text": text}]
        )
    try:
        found: Message = ParseDict(
            {"messageId": str(packet.packet_id), **fields}, Message(), ignore_unknown_fields=True
        )
    except ParseError:
        return Message(message_id=str(packet.packet_id), parts=[Part(text=text)])
    return found


def _question(packet_id: UUID, text: str, content: Any, schema: Any) -> Message:
    parts = [Part(text=text)] if text else []
    parts += [data_part(one) for one in (content, {"answerSchema": schema} if schema else None) if one]
    return Message(message_id=str(packet_id), parts=parts)


def _text_in(content: Any) -> str | None:
    """Return the text of a result: its field `text`, or the only one that is a text."""
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("text"), str):
        return str(content["text"])
    texts = [value for value in content.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else None


def data_part(content: JsonValue) -> Part:
    """Return a part with JSON."""
    return Part(data=ParseDict(content, Value()), media_type="application/json")


def parts_of(parts: Sequence[dict[str, JsonValue]]) -> list[Part]:
    """Return the parts that a team wrote; what is none becomes data."""
    made = []
    for one in parts:
        try:
            made.append(ParseDict(one, Part(), ignore_unknown_fields=True))
        except ParseError:
            made.append(data_part(one))
    return made


def json_of(message: Any) -> dict[str, Any]:
    """Return an object of the protocol as JSON."""
    found: dict[str, Any] = MessageToDict(message)
    return found
