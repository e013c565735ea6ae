"""What the routes work with: one object per server, handed to every request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import asyncpg
from fastapi import Depends, Request

from apc_contracts.contract.contract import Contract
from apc_log.offline_verifier import PublicKey
from apc_web.access.accounts import Accounts
from apc_web.acts.operations import Acts
from apc_web.fold.snapshots import Snapshots
from apc_web.live.feed import Feed
from apc_web.verifying.verifier import LogVerifier

if TYPE_CHECKING:  # an agent takes a second to import, and most servers have none
    from apc_web.chat.chats import Chats
    from apc_web.running.queue_looks import CachedProbe

KeyOf = Callable[[int], PublicKey | None]
"""Returns the log's public key of a shard; None when this server knows none."""


@dataclass(frozen=True, slots=True)
class Services:
    """The connections and caches of one server.

    Args:
        pool: connections that read the log, with a time limit for each statement.
        state: connections that read the agents' tasks and effects.
        contract: names the machine and the windows; verdicts were made by the contract that each packet names.
        key_of: the log's public keys.
        feed: the live entries.
        acts: what an operator can do; None when there are no acts, and `why_no_acts` says why.
        accounts: people who can log in; None = a token of this start.
        probe: looks at the queues; None when this server has no way to them.
        verifier: verifies the log; None when this server cannot.
        chats: conversations with an agent; None when there is none, and `why_no_chat` says why.
    """

    pool: asyncpg.Pool
    state: asyncpg.Pool
    contract: Contract
    key_of: KeyOf
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
