"""The bounds of a contract file: packets, quotas, refused input, usage."""

from typing import Annotated

from pydantic import Field

from apc_contracts.contract.section import Positive, Section, Word


class Quota(Section):
    """A token bucket: tokens per second that flow back, and how many it holds."""

    packets_per_second: Annotated[float, Field(ge=0.001, le=100_000.0)]
    burst: Annotated[int, Field(ge=1, le=1_000_000)]


class QuotaRules(Quota):
    """The quotas of senders; `roles` and `agents` override the default, the agent's own first."""

    roles: dict[Word, Quota]
    agents: dict[Word, Quota]


class RefusedInput(Section):
    """How much refused input the log stores.

    Small bodies are kept whole, larger ones by their beginning, within two token buckets per broker user: messages and
    bytes.
    """

    whole_bytes: Positive = 64 * 1024
    head_bytes: Positive = 4 * 1024
    messages_per_second: Annotated[float, Field(ge=0.001, le=100_000.0)] = 1000.0
    messages_burst: Positive = 100_000
    bytes_per_second: Annotated[float, Field(ge=1.0, le=1e9)] = 1024.0 * 1024.0
    bytes_burst: Positive = 64 * 1024 * 1024


class UsageCaps(Section):
    """How much one delivery's usage report can draw.

    At most these amounts, never more than was reserved for its task, and from a budget without reserved parts at most
    this share.
    """

    tokens: Positive
    cost: Annotated[float, Field(gt=0.0)]
    share: Annotated[float, Field(gt=0.0, le=1.0)]


class Limits(Section):
    """Bounds of packets and of the gate; bytes, levels, nodes, milliseconds, packets, deliveries.

    `pending_acks` counts the ACKs that one session waits for, `task_budgets` the tasks in its tree budget: they are
    part of its document, which every log batch carries. `swarms` bounds a SessionSpec: SYNC has a score for each.
    Without `quota` senders have no quota. `wakes` bounds the pending timers of one session, for the same reason.

    `list_items` bounds each list of names in a packet, `parents` the parent protocols of one. The next three bound what
    the gate remembers of one session: `session_items` its admitted packets, with their recipients and the names that
    they refer to; `refused_items` those of refused packets, beyond which a refused packet takes no id; `open_bytes` the
    bodies of unfinished packets.
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
    wakes: Positive = 256
    refused: RefusedInput = RefusedInput()
    usage: UsageCaps | None = None
