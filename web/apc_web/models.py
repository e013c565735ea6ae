"""Models that several subjects share: the base, errors, places, a session in time, the log, agents and health."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

T = TypeVar("T")
VIEWER_SEES = "a viewer sees it"
"""The mark of a field that `roles.narrowed` leaves to viewers."""
Shown = Annotated[T, VIEWER_SEES]
"""The type of a field that viewers see; a field without the mark is empty for them."""


class ApiModel(BaseModel):
    """A frozen model; `openapi.json` shows every field of it as present in responses."""

    model_config = ConfigDict(frozen=True, from_attributes=True, json_schema_serialization_defaults_required=True)

    @classmethod
    def of(cls, *rows: object, **given: object) -> Self:
        """Return the answer that rows tell: what is not given is read from the first row that has it.

        Rows within it are read in the same way. Raises ValidationError where nothing tells a field.
        """
        return cls.model_validate(rows[0] if len(rows) == 1 and not given else _Told(rows, given))


class _Told:
    """Rows and single values, as one object with all their attributes."""

    def __init__(self, rows: tuple[object, ...], given: dict[str, object]) -> None:
        self._rows = rows
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        for row in self._rows:
            if hasattr(row, name):
                return getattr(row, name)
        raise AttributeError(name)


def column(field: str, name: str) -> Any:
    """Return what makes a field be read from a column of another name."""
    return Field(validation_alias=AliasChoices(field, name))


Sender = Annotated[str, column("sender", "sender_agent_id")]
"""Who sent a packet."""
IdText = Annotated[str, BeforeValidator(str)]
"""A packet id as its text."""


class ProblemDocument(ApiModel):
    """An error as `application/problem+json` (RFC 9457)."""

    type: str = "about:blank"
    title: str
    """The phrase of the status."""
    status: int
    detail: str
    """What happened, and what to do; one sentence."""
    code: str
    """A word for programs, such as NOT_FOUND."""
    field: str | None = None
    """The parameter, header or member at fault."""


class NamedCount(ApiModel):
    """How often a name occurs."""

    name: Shown[str]
    count: Shown[int]


class LogPlace(ApiModel):
    """A place in the log: within a shard the order of `seq` is the order of causes."""

    shard: Shown[int]
    seq: Shown[int]


NEXT = Field(default=None, description="The cursor of the next page; null at the end.")
"""The field `next` of a page."""


# A session's packets as columns for drawing, and the session at a position.


class TimelineColumns(ApiModel):
    """Packets of a session in the order of the log, column by column; row i of every list is one packet.

    `lane`, `type`, `verdict` and `code` are indexes into `lanes`, `types`, `verdicts` and `codes`.
    """

    session_id: str
    shard: int
    start: datetime
    """What `time` counts from."""
    lanes: list[str]
    """Agents, in the order of their first packet."""
    types: list[str]
    verdicts: list[str]
    """accepted, refused, held."""
    codes: list[str]
    """Codes of refusals; '' is none."""
    seq: list[int]
    """Position in the log of the shard. `/packets/SHARD-SEQ` is the packet."""
    time: list[int]
    """Milliseconds since `start`, when it was judged."""
    lane: list[int]
    type: list[int]
    verdict: list[int]
    code: list[int]
    generation: list[int]
    cause: list[int]
    """Rows back to the packet whose handling it came from (i - cause[i] is its row); 0 when there is none or it is on
    an earlier page."""
    parent: list[int]
    """Rows back to the packet that it answers; 0 as for `cause`."""
    next: str | None
    """The cursor of the next page of at most 100,000 packets; null at the end."""


class SessionAt(ApiModel):
    """A session after the input that an entry belongs to: folded from recorded columns, nothing is judged again."""

    session_id: Shown[str]
    shard: Shown[int]
    seq: Shown[int]
    """The last entry that was folded: the last one of the input that the asked entry belongs to."""
    at: Shown[datetime | None]
    """When that input was judged or recorded; null before the first entry."""
    state: Shown[str | None]
    """Null before START."""
    run_phase: Shown[str | None]
    is_paused: Shown[bool]
    round: Shown[int]
    generation: Shown[int]
    step: Shown[int]
    entries: Shown[int]
    """Entries folded so far."""
    packets: Shown[int]
    verdicts: Shown[dict[str, int]]
    """Packets by verdict: accepted, refused, held. A held one counts as held until it is judged."""
    types: Shown[dict[str, int]]
    refusals: Shown[dict[str, int]]
    sent: Shown[dict[str, int]]
    """Packets by sender."""
    deliveries: Shown[dict[str, int]]
    """Deliveries by state: ROUTED, APPLIED, DEAD_LETTERED and so on; those without their own hop are ROUTED."""
    spent: Shown[dict[str, float]]
    """tokens and cost as reported, packets as admitted."""
    budgets: Shown[dict[str, float] | None]
    """The limits of START; null where its body is sealed."""
    swarms: Shown[dict[str, list[str]] | None]
    """Swarm -> agents, of START; null where its body is sealed."""


class FoldEntry(ApiModel):
    """One entry of a session's log as the fold reads it, and as `/stream` sends it."""

    shard: Shown[int]
    seq: Shown[int]
    kind: Shown[str]
    """packet, hop or coordination."""
    session_id: Shown[str]
    run_id: Shown[str | None] = None
    at: Shown[datetime]
    packet_id: Shown[IdText]
    packet_type: Shown[str | None] = None
    sender: Shown[str | None] = None
    recipients: Shown[list[str]] = Field(default_factory=list)
    """Of a packet, and of the hop that routes it: the resolved recipients."""
    recipient: Shown[str | None] = None
    """Of a hop: its recipient, '' for the whole packet."""
    verdict: Shown[str | None] = None
    """Of a packet on arrival; of a hop that rules on a held packet: accepted or refused."""
    refusal_code: Shown[str | None] = None
    run_phase: Shown[str | None] = None
    round: Shown[int | None] = None
    generation: Shown[int | None] = None
    step: Shown[int | None] = None
    cause_packet_id: Shown[IdText | None] = None
    parent_packet_id: Shown[IdText | None] = None
    event: Shown[str | None] = None
    """Of a hop its last event, of a coordination entry its event."""
    from_state: Shown[str | None] = None
    to_state: Shown[str | None] = None
    attempt: Shown[int | None] = None
    usage: Shown[dict[str, float] | None] = None
    start: dict[str, object] | None = None
    """Of START: budgets and swarms. Of SIGNAL PAUSE and RESUME: nothing; `signal` names them."""
    signal: Shown[str | None] = None


class RefusalCounts(ApiModel):
    """Refused packets by code, the most frequent first."""

    items: list[NamedCount]


# The log itself: heads, checkpoints, and what the server is.


class ShardCheckpoint(ApiModel):
    """The end of one shard's log."""

    shard: Shown[int]
    epoch: Shown[int]
    next_seq: Shown[int]
    tree_size: Shown[int | None]
    root_hash: Shown[str | None]
    """Base64."""
    note: Shown[str | None]
    """The newest signed checkpoint."""
    recorded_at: Shown[datetime | None]
    exported: Shown[int | None]
    """Size of the newest checkpoint at an export place."""
    exported_at: Shown[datetime | None]
    public_key: Shown[str | None] = None
    """With what its checkpoints are signed, as `apc log key` prints it; null where this server knows none."""


class CheckpointList(ApiModel):
    """Heads and newest checkpoints, by shard."""

    items: Shown[list[ShardCheckpoint]]


class ConsistencyProof(ApiModel):
    """The file that `apc log consistency` writes and `apc log check` verifies (docs/reference/log-format.md)."""

    format: str
    version: int
    key: str
    """The log's public key as this server knows it."""
    old: str
    """The earlier checkpoint, a signed-note."""
    new: str
    """The later one."""
    path: list[str]
    """SHA-256 in hex, RFC 9162 section 2.1.4."""


class VerificationFinding(ApiModel):
    """Something that does not fit."""

    shard: int | None
    """null where it is about no single one."""
    seq: int
    """The first entry that it can be about."""
    message: str
    place: str


class LogVerification(ApiModel):
    """A verification of the log against its tree, its stored checkpoints and its sessions."""

    state: Literal["none", "running", "done", "failed", "cancelled"]
    """none: there was none since the server started."""
    by: str | None = None
    """Who started it."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    entries: int = 0
    """That were recomputed."""
    total: int = 0
    """Entries that there are to recompute."""
    is_whole: bool | None = None
    """Whether everything fits; null until it is done."""
    findings: list[VerificationFinding] = Field(default_factory=list)
    """At most 100."""
    unlisted: int = 0
    """Findings beyond those."""
    words: str | None = None
    """Why it failed, one sentence."""
    why_not: str | None = None
    """Why this server cannot verify, one sentence; null when it can."""


class ServerAbout(ApiModel):
    """What this server is, and what the caller may do here."""

    version: Shown[str]
    can_act: Shown[bool]
    why_not: Shown[str | None]
    """Why there are no acts, one sentence."""
    can_chat: Shown[bool]
    why_no_chat: Shown[str | None]
    """Why there is nobody to talk to, one sentence."""
    database: Shown[str]
    """embedded or server."""
    user: Shown[str]
    """Who asks; `local` on a server without accounts."""
    role: Shown[str]
    """viewer, reader or operator."""
    has_accounts: Shown[bool]
    run_id: Shown[str | None]
    """The run that `apc ui --run` was given."""


class LoginRequest(ApiModel):
    """Who logs in."""

    name: str = Field(max_length=64)
    password: SecretStr = Field(max_length=1_024)


class StreamEntries(ApiModel):
    """The data of an event `entries`."""

    heads: Shown[dict[str, int]]
    """Shard -> the last seq that was sent; as JSON it is the event's id, too."""
    items: Shown[list[FoldEntry]]
    """In the order of the log within each shard."""


class StreamReset(ApiModel):
    """The data of an event `reset`: the client is too far behind; reload, and go on from `heads`."""

    heads: Shown[dict[str, int]]


class StreamState(ApiModel):
    """The data of an event `state`: whether the database answers; nothing that comes after it is lost."""

    is_readable: Shown[bool]


# Registered agents: alive or not, what waits for them, and what the gate lets them do.


class AgentQuota(ApiModel):
    """How fast the gate admits an agent's packets."""

    packets_per_second: Shown[float]
    burst: Shown[int]
    """Packets at once."""


class AgentSummary(ApiModel):
    """A registered agent, or a person."""

    agent_id: Shown[str]
    kind: Shown[Literal["agent", "person"]]
    """A person has no inbox and no heartbeat."""
    role: Shown[str]
    swarm: Shown[str]
    rights: Shown[list[str]]
    handles: Shown[list[str]]
    broker_user: Shown[str | None]
    host: Shown[str | None] = None
    """The host in whose process it runs, with an inbox that its agents share; null = it has its own queues."""
    is_host_present: Shown[bool | None] = None
    """Whether its host is here; null = it has none, nobody knows, or it spoke after its host had gone."""
    is_revoked: Shown[bool]
    keys: Shown[list[str]]
    last_seen: Shown[datetime | None]
    """Its newest packet or receipt, or the newest change of its host; up to 30 s old while it is heard of."""
    is_alive: Shown[bool]
    """Its host is here; without a host, it was heard of within 90 s: by a packet, a receipt or a HEARTBEAT."""
    open_deliveries: Shown[int]
    most_open: Shown[int]
    """Open deliveries from which on the gate refuses more."""
    quota: Shown[AgentQuota | None]
    """null = no quota."""
    waiting: Shown[int | None] = None
    """Messages in its two queues, or those of its host, that no process has taken; null when not asked for, or
    unknown."""
    consumers: Shown[int | None] = None
    """Consumers of its two queues, or those of its host; null when not asked for, or unknown."""


class AgentList(ApiModel):
    """Agents by name."""

    items: Shown[list[AgentSummary]]
    is_complete: Shown[bool] = True
    """False: queues were asked for, and of some agents nobody knows them; `words` says why."""
    words: Shown[str | None] = None


# Whether orchestrator, persister and agents work, and the alerts that fire.


class ServiceHealth(ApiModel):
    """The gate or the log writer of one shard."""

    service: Shown[Literal["gate", "log_writer"]]
    shard: Shown[int]
    state: Shown[Literal["running", "stopped", "unknown"]]
    waiting: Shown[int | None]
    """Messages in its queue; null when nobody can say."""
    delay_seconds: Shown[float | None]
    """Of the log writer: from verdict to commit, of 95 of 100 packets of the last 5 minutes; null without packets."""
    words: Shown[str]


class FiringAlert(ApiModel):
    """Something that a person should look at."""

    name: Shown[str]
    """As in the rules for Prometheus."""
    severity: Shown[Literal["critical", "warning"]]
    words: Shown[str]


class SystemHealth(ApiModel):
    """What the server knows of the running system: from the log, the projections and the queues."""

    looked_at: Shown[datetime]
    is_complete: Shown[bool]
    """False: the queues could not be looked at, and `words` says why."""
    words: Shown[str]
    services: Shown[list[ServiceHealth]]
    agents: Shown[int]
    """Registered agents that have not been revoked."""
    alive: Shown[int]
    """Of these, heard of within 90 s."""
    alerts: Shown[list[FiringAlert]]
