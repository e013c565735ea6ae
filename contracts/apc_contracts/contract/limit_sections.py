"""The bounds of a contract file: packets, quotas, refused input, usage."""

from typing import Annotated

from pydantic import Field

from apc_contracts.contract.section import Positive, Section, Word


class Quota(Section):
    """A token bucket: packets that flow back a second, and how many it holds."""

    packets_per_second: Annotated[float, Field(ge=0.001, le=100_000.0)]
    burst: Annotated[int, Field(ge=1, le=1_000_000)]


class QuotaRules(Quota):
    """Every sender's bucket; `roles` and `agents` give others, by role and by agent_id, the agent's own first."""

    roles: dict[Word, Quota]
    agents: dict[Word, Quota]


class RefusedInput(Section):
    """What the log takes of input that is refused: the bodies that are kept whole and the beginning of longer ones, and
    for each broker user two token buckets, of messages and of bytes.
    """

    whole_bytes: Positive = 64 * 1024
    head_bytes: Positive = 4 * 1024
    messages_per_second: Annotated[float, Field(ge=0.001, le=100_000.0)] = 1000.0
    messages_burst: Positive = 100_000
    bytes_per_second: Annotated[float, Field(ge=1.0, le=1e9)] = 1024.0 * 1024.0
    bytes_burst: Positive = 64 * 1024 * 1024


class UsageCaps(Section):
    """What one delivery can draw by its report: so much at most, never more than was reserved for its task, and of a
    budget that nobody reserved a part of no more than this share.
    """

    tokens: Positive
    cost: Annotated[float, Field(gt=0.0)]
    share: Annotated[float, Field(gt=0.0, le=1.0)]


class Limits(Section):
    """Bounds of packets and of the gate; bytes, levels, nodes, milliseconds, packets, deliveries.

    `pending_acks` counts the ACKs that one session waits for, `task_budgets` the tasks in its tree budget: they live in
    its document, which every log batch carries. `swarms` bounds a SessionSpec: SYNC has a score of each. Without
    `quota` senders have none.

    `list_items` bounds each list of names in a packet, `parents` the parent protocols of one. The next three bound what
    the gate remembers of one session: `session_items` its admitted packets, with their recipients and the names that
    they refer to; `refused_items` those of refused packets, beyond which a refused packet takes no id; `open_bytes` the
    bodies of packets that have no end yet.
    """

    packet_bytes: Positive
    nesting_levels: Positive
    nodes: Positive
    clock_skew_ms: Annotated[int, Field(ge=0)]
    held_packets: Annotated[int, Field(ge=0)]
    outstanding_deliveries: Positive
    pending_acks: Positive
    task_budgets: Positive
    swarms: Positive
    retry_after_ms: Positive
    quota: QuotaRules | None = None
    list_items: Positive = 1000
    parents: Positive = 64
    session_items: Positive = 300_000
    refused_items: Positive = 30_000
    open_bytes: Positive = 64 * 1024 * 1024
    refused: RefusedInput = RefusedInput()
    usage: UsageCaps | None = None
