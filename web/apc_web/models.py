"""Models that several subjects share: the base, errors, places, a session in time, the log, agents and health."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class ApiModel(BaseModel):
    """A frozen model; `openapi.json` shows every field of it as present in responses."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


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

    name: str
    count: int


class LogPlace(ApiModel):
    """A place in the log: within a shard the order of `seq` is the order of causes."""

    shard: int
    seq: int


NEXT = Field(default=None, description="The cursor of the next page; null at the end.")
"""The field `next` of a page."""


# A session's packets as columns for drawing, and the session at a position.


class TimelineColumns(ApiModel):
    """Packets of a session in the order of the log, column by column; row i of every list is one packet.

    `lane`, `type`, `verdict`, `state` and `code` are indexes into `lanes`, `types`, `verdicts` and `codes`.
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

    session_id: str
    shard: int
    seq: int
    """The last entry that was folded: the last one of the input that the asked entry belongs to."""
    at: datetime | None
    """When that input was judged or recorded; null before the first entry."""
    state: str | None
    """Null before START."""
    run_phase: str | None
    is_paused: bool
    round: int
    generation: int
    step: int
    entries: int
    """Entries folded so far."""
    packets: int
    verdicts: dict[str, int]
    """Packets by verdict: accepted, refused, held. A held one counts as held until it is judged."""
    types: dict[str, int]
    refusals: dict[str, int]
    sent: dict[str, int]
    """Packets by sender."""
    deliveries: dict[str, int]
    """Deliveries by state: ROUTED, APPLIED, DEAD_LETTERED and so on; those without their own hop are ROUTED."""
    spent: dict[str, float]
    """tokens and cost as reported, packets as admitted."""
    budgets: dict[str, float] | None
    """The limits of START; null where its body is sealed."""
    swarms: dict[str, list[str]] | None
    """Swarm -> agents, of START; null where its body is sealed."""


class FoldEntry(ApiModel):
    """One entry of a session's log as the fold reads it, and as `/stream` sends it."""

    shard: int
    seq: int
    kind: str
    """packet, hop or coordination."""
    session_id: str
    run_id: str | None = None
    at: datetime
    packet_id: str
    packet_type: str | None = None
    sender: str | None = None
    recipients: list[str] = Field(default_factory=list)
    """Of a packet, and of the hop that routes it: the resolved recipients."""
    recipient: str | None = None
    """Of a hop: its recipient, '' for the whole packet."""
    verdict: str | None = None
    """Of a packet on arrival; of a hop that rules on a held packet: accepted or refused."""
    refusal_code: str | None = None
    run_phase: str | None = None
    round: int | None = None
    generation: int | None = None
    step: int | None = None
    cause_packet_id: str | None = None
    parent_packet_id: str | None = None
    event: str | None = None
    """Of a hop its last event, of a coordination entry its event."""
    from_state: str | None = None
    to_state: str | None = None
    attempt: int | None = None
    usage: dict[str, float] | None = None
    start: dict[str, object] | None = None
    """Of START: budgets and swarms. Of SIGNAL PAUSE and RESUME: nothing; `signal` names them."""
    signal: str | None = None


class RefusalCounts(ApiModel):
    """Refused packets by code, the most frequent first."""

    items: list[NamedCount]


# The log itself: heads, checkpoints, and what the server is.


class ShardCheckpoint(ApiModel):
    """The end of one shard's log."""

    shard: int
    epoch: int
    next_seq: int
    tree_size: int | None
    root_hash: str | None
    """Base64."""
    note: str | None
    """The newest signed checkpoint."""
    recorded_at: datetime | None
    exported: int | None
    """Size of the newest checkpoint at an export place."""
    exported_at: datetime | None


class CheckpointList(ApiModel):
    """Heads and newest checkpoints, by shard."""

    items: list[ShardCheckpoint]


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

    version: str
    can_act: bool
    why_not: str | None
    """Why there are no acts, one sentence."""
    can_chat: bool
    why_no_chat: str | None
    """Why there is nobody to talk to, one sentence."""
    database: str
    """embedded or server."""
    user: str
    """Who asks; `local` on a server without accounts."""
    role: str
    """viewer, reader or operator."""
    has_accounts: bool
    run_id: str | None
    """The run that `apc ui --run` was given."""


class LoginRequest(ApiModel):
    """Who logs in."""

    name: str = Field(max_length=64)
    password: SecretStr = Field(max_length=1_024)


class StreamEntries(ApiModel):
    """The data of an event `entries`."""

    heads: dict[str, int]
    """Shard -> the last seq that was sent; as JSON it is the event's id, too."""
    items: list[FoldEntry]
    """In the order of the log within each shard."""


class StreamReset(ApiModel):
    """The data of an event `reset`: the client is too far behind; reload, and go on from `heads`."""

    heads: dict[str, int]


class StreamState(ApiModel):
    """The data of an event `state`: whether the database answers; nothing that comes after it is lost."""

    is_readable: bool


# Registered agents: alive or not, what waits for them, and what the gate lets them do.


class AgentQuota(ApiModel):
    """How fast the gate admits an agent's packets."""

    packets_per_second: float
    burst: int
    """Packets at once."""


class AgentSummary(ApiModel):
    """A registered agent, or a person."""

    agent_id: str
    kind: Literal["agent", "person"]
    """A person has no inbox and no heartbeat."""
    role: str
    swarm: str
    rights: list[str]
    handles: list[str]
    broker_user: str | None
    is_revoked: bool
    keys: list[str]
    last_seen: datetime | None
    is_alive: bool
    """A heartbeat was logged within 90 s."""
    open_deliveries: int
    most_open: int
    """Open deliveries from which on the gate refuses more."""
    quota: AgentQuota | None
    """null = no quota."""
    waiting: int | None = None
    """Messages in its two queues that no process has taken; null when not asked for, or unknown."""
    consumers: int | None = None
    """Consumers of its two queues; null when not asked for, or unknown."""


class AgentList(ApiModel):
    """Agents by name."""

    items: list[AgentSummary]
    is_complete: bool = True
    """False: queues were asked for, and of some agents nobody knows them; `words` says why."""
    words: str | None = None


# Whether gate, log writer and agents work, and the alerts that fire.


class ServiceHealth(ApiModel):
    """The gate or the log writer of one shard."""

    service: Literal["gate", "log_writer"]
    shard: int
    state: Literal["running", "stopped", "unknown"]
    waiting: int | None
    """Messages in its queue; null when nobody can say."""
    delay_seconds: float | None
    """Of the log writer: from verdict to commit, of 95 of 100 packets of the last 5 minutes; null without packets."""
    words: str


class FiringAlert(ApiModel):
    """Something that a person should look at."""

    name: str
    """As in the rules for Prometheus."""
    severity: Literal["critical", "warning"]
    words: str


class SystemHealth(ApiModel):
    """What the server knows of the running system: from the log, the projections and the queues."""

    looked_at: datetime
    is_complete: bool
    """False: the queues could not be looked at, and `words` says why."""
    words: str
    services: list[ServiceHealth]
    agents: int
    """Registered agents that have not been revoked."""
    alive: int
    """Of these, with a heartbeat within 90 s."""
    alerts: list[FiringAlert]
