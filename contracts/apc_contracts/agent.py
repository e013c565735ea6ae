"""What an agent is given and what it answers: the context object, an LLM agent's answer, a handler's path.

All fields of the context object are optional; unknown ones are kept, because the protocol asks agents to be resilient
to them. Sources: docs/reference/conformance/agent-context.md section 2, docs/specification/agents.md section 2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from apc_contracts.contract_model import Fraction, Model, Name, OpenMap, Time, Uuid, broken
from apc_contracts.errors import ContractError, PacketRefused
from apc_contracts.limits import DEFAULT_LIMITS, DocumentLimits
from apc_contracts.wire.parsing import refusal_of, validated
from apc_contracts.wire.strict_json import read_strict_json

if TYPE_CHECKING:
    from apc_contracts.contract.machines import Machine

CONTEXT_VERSION: Final = "1.1"


def context_uuid(kind: str, original: str) -> UUID:
    """Return the UUID for one of our ids: the id itself if it is a UUID, else its UUIDv5, identical everywhere."""
    try:
        parsed = UUID(original)
    except ValueError:
        return uuid5(NAMESPACE_URL, f"apc:{kind}/{original}")
    return parsed if str(parsed) == original else uuid5(NAMESPACE_URL, f"apc:{kind}/{original}")


class _Open(BaseModel):
    """A frozen value that keeps the fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, defer_build=True)


class SourceEntity(_Open):
    """Who made or forwarded the context; `type` is user, agent, system_module or another word."""

    id: str | None = None
    type: str | None = None


class ArchetypalAlignment(_Open):
    """The user's archetypes."""

    primary_archetype: str | None = None
    secondary_archetype: str | None = None
    alignment_strength: Fraction | None = None


class UserProfile(_Open):
    """The user of the interaction."""

    user_id: Uuid | None = None
    archetypal_alignment: ArchetypalAlignment | None = None
    resonance_fingerprint_summary: OpenMap | None = None


class NarrativeState(_Open):
    """The state of the conversation."""

    current_thread_id: str | None = None
    current_realm: str | None = None
    current_ritual_id: str | None = None
    symbolic_focus: tuple[str, ...] | None = None
    mythic_overlay_active: str | None = None


class ContextMessage(_Open):
    """One message of the history, or the current one."""

    sender_id: str | None = None
    content: str | None = None
    timestamp_utc: Time | None = None
    metadata: Mapping[str, JsonValue] | None = None


class InteractionHistory(_Open):
    """Earlier messages; `full_history_reference` is the session_id of the conversation in the memory store."""

    recent_messages: tuple[ContextMessage, ...] | None = None
    previous_exchange_summary: str | None = None
    relevant_message_ids: tuple[Uuid, ...] | None = None
    full_history_reference: str | None = None


class SystemState(_Open):
    """The load of the system: `current_system_load` is low, medium or high."""

    current_system_load: str | None = None
    active_anomalies: tuple[str, ...] | None = None


class ResponseConstraints(_Open):
    """Requirements on an answer: a length in characters, and text, json or markdown."""

    max_length: int | None = None
    format: str | None = None


class ProcessingDirectives(_Open):
    """What the receiving agent is asked to do."""

    requested_action: str | None = None
    response_constraints: ResponseConstraints | None = None
    priority: int | None = None


class AgentContext(_Open):
    """A snapshot of the situation in which one agent is invoked."""

    context_id: Uuid
    session_id: Uuid
    message_id: Uuid | None = None
    request_id: Uuid | None = None
    timestamp_utc: Time
    source_entity: SourceEntity | None = None
    target_agent_id: Uuid | None = None
    user_profile: UserProfile | None = None
    narrative_state: NarrativeState | None = None
    interaction_history: InteractionHistory | None = None
    system_state: SystemState | None = None
    processing_directives: ProcessingDirectives | None = None
    custom_data: OpenMap | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the context as JSON; fields that were not given are left out."""
        document: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        return document

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Return the context in a JSON document. Raises pydantic.ValidationError, which names the field."""
        return cls.model_validate(document)


# What an LLM agent answers: thoughts, actions and a response (the Chimera agent schema, v1.0 and v2.0).
#
# Source: docs/reference/conformance/actions.md, closed by docs/specification/agents.md section 5. A pure description:
# nothing here runs.

MAX_ACTIONS = 100
"""Limit of the actions in one response, sub-actions included."""
MAX_SUB_LEVELS = 5
"""How deep sub-actions may nest."""

ACTION_ID_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
"""No dot: `${{results.action_id.path}}` ends the id at the first one."""

STATUS_SUCCESS = "SUCCESS"
STATUS_EXECUTING = "EXECUTING"
STATUS_ERROR = "ERROR"
STATUS_TASK_STARTED = "TASK_STARTED"
KNOWN_STATUSES = (STATUS_SUCCESS, STATUS_EXECUTING, STATUS_ERROR, STATUS_TASK_STARTED)
"""Statuses that the schema names; others are accepted as text."""
KNOWN_THOUGHTS = ("PLAN", "OBSERVATION", "DECISION")
"""Kinds of thought that the schema names; others are accepted as text."""

Status = Annotated[Name, Field(examples=list(KNOWN_STATUSES))]
ThoughtType = Annotated[Name, Field(examples=list(KNOWN_THOUGHTS))]
ActionId = Annotated[str, Field(pattern=ACTION_ID_PATTERN)]
SchemaVersion = Literal["1.0", "2.0"]


class ActionType(StrEnum):
    """What carries out an action."""

    TOOL = "tool"
    """A function that the agent has registered."""
    SCRIPT = "script"
    """A sandboxed runner, if one is registered."""
    INTERNAL = "internal"
    """A verb of the SDK: remember, forget, emit, stop."""


class Execution(StrEnum):
    """When an action runs."""

    SYNC = "SYNC"
    """Now, before the report of the actions."""
    ASYNC = "ASYNC"
    """As a durable task: the report contains its task_id."""


class SecurityLevel(StrEnum):
    """What may run; each level includes those before it."""

    PUBLIC = "public"
    USER = "user"
    TRUSTED = "trusted"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """0 for `public`, higher for what may do more."""
        return list(SecurityLevel).index(self)


class ResponseContext(Model):
    """The context of the operation (v2.0)."""

    knowledge_relics: Annotated[
        tuple[Name, ...], Field(description="ids of the only knowledge that the tools of this response may read")
    ] = ()
    security_level: Annotated[
        SecurityLevel | None,
        Field(description="runs the actions at this level; never above the one that the agent was given"),
    ] = None
    variables: OpenMap = Field(default_factory=dict, description="values for ${{variables.name}} in params")


class Thought(Model):
    """A step of the agent's reasoning. Recorded, never used as input for control.

    Attributes:
        type: what kind of step it is.
        content: the step, in words.
    """

    type: ThoughtType
    content: str


class Action(Model):
    """Something to do. Everything beyond the seven fields of v1.0 belongs to v2.0.

    Attributes:
        type: what kind of act it is.
        execution: SYNC is waited for; ASYNC starts a task and goes on.
        confidence: how sure the agent is that it is right, 0..1.
        warnings: what it wants people to know about it.
    """

    action: Annotated[Name, Field(description="the name of the tool or verb")]
    type: ActionType
    params: OpenMap = Field(
        default_factory=dict,
        description="arguments; ${{variables.x}} and ${{results.action_id.path}} are substituted",
    )
    execution: Execution = Execution.SYNC
    confidence: Fraction | None = None
    warnings: tuple[str, ...] = ()
    action_id: Annotated[
        ActionId | None, Field(description="unique in the response; without one it is action_N, counted from 1")
    ] = None
    depends_on: Annotated[tuple[ActionId, ...], Field(description="the action_ids that must succeed before")] = ()
    display: Annotated[str | None, Field(description="what a user is shown while it runs")] = None
    sub_actions: Annotated[
        tuple["Action", ...], Field(description="run after this one has succeeded; it is done when they are")
    ] = ()
    task_id: Annotated[
        str | None, Field(description="assigned when an ASYNC action starts; what is proposed here is only text")
    ] = None

    def walk(self) -> Iterator["Action"]:
        """Yield this action, then its sub-actions, depth first."""
        yield self
        for sub_action in self.sub_actions:
            yield from sub_action.walk()

    @property
    def levels(self) -> int:
        """How deep sub-actions nest: 0 when there are none."""
        return max((1 + sub_action.levels for sub_action in self.sub_actions), default=0)


class AgentResponse(Model):
    """One answer of an LLM agent.

    v1.0 and v2.0 are one model, because each document of v1.0 is one of v2.0; `version` says which one a document
    needs. A document may name it in `schema_version`.

    Attributes:
        schema_version: `1.0` or `2.0`; None = the lowest that has everything that the document uses.
        status: how the operation stands.
        context: what the operation may read, and at which level (v2.0).
        thoughts: the agent's reasoning.
        actions: what it wants done, in this order but for `depends_on`.
    """

    schema_version: SchemaVersion | None = None
    status: Status
    context: ResponseContext | None = None
    thoughts: tuple[Thought, ...] = ()
    actions: tuple[Action, ...] = ()
    stop: Annotated[bool, Field(description="true when nothing more is to be done after these actions")]
    response: Annotated[str | None, Field(description="what the user is told")] = None

    @property
    def version(self) -> SchemaVersion:
        """The version that the document names, or the lowest that has everything it uses."""
        return self.schema_version or ("1.0" if self._newer_than_v1() is None else "2.0")

    def walk(self) -> Iterator[Action]:
        """Yield every action and sub-action in the order of the document."""
        for action in self.actions:
            yield from action.walk()

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if any(action.levels > MAX_SUB_LEVELS for action in self.actions):
            raise broken("actions", f"sub_actions nest deeper than {MAX_SUB_LEVELS} levels: flatten them")
        count = sum(1 for _ in self.walk())
        if count > MAX_ACTIONS:
            raise broken("actions", f"{count} actions with their sub_actions, {MAX_ACTIONS} are allowed: send fewer")
        newer = self._newer_than_v1()
        if self.schema_version == "1.0" and newer is not None:
            raise broken(newer, "belongs to schema 2.0: leave it out, or say schema_version 2.0")
        return self

    def _newer_than_v1(self) -> str | None:
        """Return the first field used that v1.0 does not have."""
        if self.context is not None:
            return "context"
        if self.status == STATUS_TASK_STARTED:
            return "status"
        for number, action in enumerate(self.actions):
            for field in ("action_id", "depends_on", "display", "sub_actions", "task_id"):
                if getattr(action, field):
                    return f"actions[{number}].{field}"
        return None


class ResponseInvalid(ContractError):
    """A document that is not an AgentResponse.

    `code` is from docs/specification/contract.md section 12; `path` is dotted, `$` for the whole document.
    """

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(f"{code} at {path}: {message}")
        self.code = code
        self.path = path
        self.message = message


def parse_response(document: bytes | str, limits: DocumentLimits = DEFAULT_LIMITS) -> AgentResponse:
    """Return the response in a JSON document.

    ```python
    try:
        parse_response("Sure, I will do that.")
    except ResponseInvalid as error:
        assert "JSON" in str(error)
    ```

    Raises:
        ResponseInvalid: TOO_LARGE, TOO_DEEP, MALFORMED (prose included) or SCHEMA_INVALID, with the place and the
    remedy.
    """
    body = document.encode(errors="surrogatepass") if isinstance(document, str) else document
    try:
        read_strict_json(body, limits)
        return validated(body, _validate)
    except PacketRefused as refused:
        raise ResponseInvalid(refused.code, refused.path, refused.message) from refused
    except ValidationError as error:
        first = refusal_of(error)
        raise ResponseInvalid(first.code, first.path, first.message) from error


def _validate(body: bytes) -> AgentResponse:
    return AgentResponse.model_validate_json(body, strict=True)


# A handler's path through `intra_agent_coordination`, as far as the log shows it (docs/how-to/see-and-search.md).

INTRA_AGENT_MACHINE = "intra_agent_coordination"
IDEA = ("idea_packet_ready", "critique_pass", "artifact_local_ready", "local_checks_pass", "packet_emitted")
"""The events of an emission up to the broker's confirm."""


class Answer(StrEnum):
    """The outcome of an emission."""

    TAKEN = "taken"
    REFUSED = "refused"
    OPEN = "open"
    """It requires an ACK that has not come."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One step of the machine."""

    event: str
    from_state: str
    to_state: str


def walk_from_log(machine: "Machine", answers: Sequence[Answer], *, has_failed: bool) -> tuple[LocalStep, ...]:
    """Return the steps of one handler invocation, derived from its emissions in the order of the log.

    A handler's own `critique_fail` and `local_checks_fail` are not logged, so they are not seen. A handler that emitted
    nothing has no instance of the machine.
    """
    walk = _Walk(machine)
    for answer in answers:
        walk.emit(answer)
    if has_failed and answers:
        walk.take("cancel_or_error")
    return tuple(walk.steps)


class _Walk:
    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._state = machine.initial
        self.steps: list[LocalStep] = []

    def emit(self, answer: Answer) -> None:
        if self._state == self._machine.initial:
            self.take("task_assigned")
            self.take("context_complete")
        if self._machine.edge(self._state, IDEA[0]) is None:
            return  # beside an emission that waits for its ACK: the machine follows one at a time
        for event in IDEA:
            self.take(event)
        if answer is not Answer.OPEN:
            self.take("ack_accepted" if answer is Answer.TAKEN else "ack_rejected_or_deferred")

    def take(self, event: str) -> None:
        before, self._state = self._state, self._machine.step(self._state, event)
        self.steps.append(LocalStep(event, before, self._state))
