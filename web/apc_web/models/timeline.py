"""A session's packets as columns for drawing, and the session at a position."""

from datetime import datetime

from pydantic import Field

from apc_web.models.model_base import ApiModel, NamedCount


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
