"""What the routes work with: one object per server, handed to every request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from uuid import UUID

import asyncpg
from fastapi import Depends, Request
from pydantic import JsonValue

from apc_agents.effects import EffectId
from apc_contracts.contract.contract import Contract
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.offline_verifier import PublicKey
from apc_log.queries import DeliveryId
from apc_log.queries.troubles import IssueKey
from apc_web.access import Accounts
from apc_web.contents import SchemaCache
from apc_web.fold import Snapshots
from apc_web.live import Feed
from apc_web.verification_job import LogVerifier

if TYPE_CHECKING:
    from apc_web.chats import Chats
    from apc_web.queue_looks import CachedProbe


@dataclass(frozen=True, slots=True)
class ActResult:
    """What became of an act: a verdict or a state, and its details."""

    verdict: str
    detail: dict[str, Any]


class Acts(Protocol):
    """Acts of operators. `by` is the person who acts; None = the operator of this server.

    Each act waits until the log shows its effect. It raises InputUnusable when it is not possible, and ServiceAway when
    broker, orchestrator or log do not answer.
    """

    async def why_not(self, by: str | None) -> str | None:
        """Return why somebody may not operate now, one sentence; None when they may."""
        ...

    async def voices(self, by: str | None) -> frozenset[str]:
        """Return the people in whose names somebody may answer."""
        ...

    async def settle(
        self,
        kind: ReceiptKind,
        deliveries: Sequence[DeliveryId],
        note: str | None,
        by: str | None,
        attempts: Mapping[DeliveryId, int] | None = None,
    ) -> ActResult:
        """Requeue or discard dead deliveries; one that died in another attempt than here is left as it is."""
        ...

    async def answer(
        self,
        packet_id: UUID,
        outcome: AnswerOutcome,
        note: str | None,
        person: str | None,
        seen: str | None = None,
        content: Mapping[str, JsonValue] | None = None,
    ) -> ActResult:
        """Approve or deny what an agent asks people.

        Args:
            packet_id: the question.
            outcome: approved or denied.
            note: the reason.
            person: who answers; None = the only one asked whom this server speaks for.
            seen: the payload hash of what was on their screen; None = they did not have to read it.
            content: the fields that the question asks for.
        """
        ...

    async def settle_effect(self, effect: EffectId, result: JsonValue, by: str | None, *, is_made: bool) -> ActResult:
        """Settle an effect whose outcome is unknown: it was made, with this result, or it was not."""
        ...

    async def acknowledge(self, issue: IssueKey, note: str, seen_until: datetime, by: str | None) -> ActResult:
        """Record that somebody knows of an issue, as far as they have seen it."""
        ...

    async def signal(self, session_id: str, signal: Signal, reason: str | None, by: str | None) -> ActResult:
        """Pause, resume or stop a session."""
        ...


KeyOf = Callable[[int], PublicKey | None]
"""Returns the log's public key of a shard; None when this server knows none."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What reads the log: all that the answers of the web console and of other doors are made from.

    Args:
        pool: connections that read the log, with a time limit for each statement.
        contract: names the machine and the windows; verdicts were made by the contract that each packet names.
        key_of: the log's public keys.
        schemas: the registered schemas that were asked for last.
    """

    pool: asyncpg.Pool
    contract: Contract
    key_of: KeyOf
    schemas: SchemaCache = field(default_factory=SchemaCache, kw_only=True)


@dataclass(frozen=True, slots=True)
class Services(Reading):
    """The connections and caches of one web server, beside those that read the log.

    Args:
        state: connections that read the agents' tasks and effects.
        feed: the live entries.
        acts: what an operator can do; None when there are no acts, and `why_no_acts` says why.
        accounts: people who can log in; None = a token of this start.
        probe: looks at the queues; None when this server has no way to them.
        verifier: verifies the log; None when this server cannot.
        chats: conversations with an agent; None when there is none, and `why_no_chat` says why.
    """

    state: asyncpg.Pool
    feed: Feed
    is_embedded: bool
    run_id: str | None = None
    acts: Acts | None = None
    why_no_acts: str | None = None
    accounts: Accounts | None = None
    chats: "Chats | None" = None
    why_no_chat: str | None = None
    probe: "CachedProbe | None" = None
    verifier: LogVerifier | None = None
    snapshots: Snapshots = field(default_factory=Snapshots)


def services_of(request: Request) -> Services:
    """Return the services of the server that got this request."""
    services: Services = request.app.state.services
    return services


Serving = Annotated[Services, Depends(services_of)]
"""The parameter of a route that wants the services."""
