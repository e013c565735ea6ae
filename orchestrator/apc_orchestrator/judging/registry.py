"""The registry in the orchestrator's memory: read from the logged changes (view `agents`), then kept up to date."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

import asyncpg

from apc_bus.telemetry import get_logger
from apc_contracts.contract.collection import Contracts, stored_contract
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ContractInvalid
from apc_contracts.identity.registry import (
    ANY_SCHEMA,
    SPEAKS_ALL,
    Kind,
    Neighbours,
    Registration,
    host_objection,
    move_objection,
    voice_objection,
)
from apc_contracts.identity.registry_change import AgentAdded, AnyChange, ContractAdded, SchemaAdded
from apc_contracts.schemas import MAX_SCHEMAS, RegisteredSchema, known_schema
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Right
from apc_log.registry import (
    read_changes,
    read_contracts,
    read_hosts,
    read_later_changes,
    read_registry,
    read_schemas,
)

_log = get_logger(__name__)


class Registry:
    """agent_id -> Registration; the orchestrator itself is always present, with every right."""

    def __init__(
        self,
        broker_user: str,
        registrations: Mapping[str, Registration],
        changes: set[UUID],
        schemas: Mapping[str, RegisteredSchema] | None = None,
        contracts: Contracts | None = None,
        *,
        decides: bool = True,
        logged_hosts: Mapping[str, bool] | None = None,
    ) -> None:
        self.by_id: dict[str, Registration] = dict(registrations)
        self.by_id[ORCHESTRATOR] = Registration(
            ORCHESTRATOR,
            broker_user,
            role="orchestrator",
            swarm_id=ORCHESTRATOR,
            rights=frozenset(Right),
            handles=frozenset(PacketType),
            schemas=frozenset({ANY_SCHEMA}),
            speaks=SPEAKS_ALL,
        )
        self.schemas: dict[str, RegisteredSchema] = dict(schemas or {})
        """schema_id -> the schema of that name and version; a version never changes."""
        self.contracts = contracts or Contracts(load_contract())
        """The contracts that a START may name; this registry adds to them."""
        self.logged_hosts = dict(logged_hosts or {})
        """Whether each host was here at the beginning of the lease, by the log: shard 0 alone knows it."""
        self._neighbours = Neighbours(registrations.values())
        self._changes = changes
        self._decides = decides

    @classmethod
    async def load(
        cls,
        pool: asyncpg.Pool,
        broker_user: str,
        shard: int,
        contracts: Contracts | None = None,
        *,
        own: asyncpg.Pool | None = None,
    ) -> "Registry":
        """Read the registry as the log of this shard left it.

        Args:
            pool: of home, whose shards say what the registry is.
            broker_user: of the orchestrator.
            shard: whose changes are known.
            contracts: are there without being registered.
            own: of the database that has the shard, if it is another: home may yet lack what this shard has logged.
        """
        later = [] if own is None or own is pool else await read_later_changes(own, pool, shard)
        registrations, changes = await read_registry(pool), await read_changes(own or pool, shard)
        known = (contracts or Contracts(load_contract())).copy()
        for one in await read_contracts(pool):
            contract = stored_contract(one.document.encode())
            if contract is None:
                _log.warning("contract_unusable", contract=one.name, reason="this version cannot judge by it")
                known.count(one.name, one.revision)
            else:
                known.register(contract, one.revision)
        schemas = await read_schemas(pool)
        hosts = await read_hosts(pool) if shard == 0 else None
        changes -= {change.change_id for change in later}
        registry = cls(broker_user, registrations, changes, schemas, known, decides=shard == 0, logged_hosts=hosts)
        for change in later:
            registry.apply(change)
        return registry

    def objection(self, change: AnyChange, trusted: Collection[str] = ()) -> str | None:
        """Return why a change cannot be applied; None when it can, or was.

        The broker users in `trusted` may change the registry, and so may speak for anybody.
        """
        if change.change_id in self._changes:
            return None
        if isinstance(change, SchemaAdded):
            return self._objection_to_schema(change)
        if isinstance(change, ContractAdded):
            try:
                return self.contracts.objection(change.contract(), change.revision, decides=self._decides)
            except ContractInvalid as error:
                return f"contract {change.name} at {error.place}: {error.message}"
        if isinstance(change, AgentAdded):
            added = change.registration()
            others = self._neighbours.of_other_kind(added)
            return (
                voice_objection(added, others, trusted)
                or host_objection(added, self._neighbours)
                or move_objection(added, self.by_id.get(added.agent_id))
            )
        return None

    def _objection_to_schema(self, change: SchemaAdded) -> str | None:
        known = self.schemas.get(change.schema_id)
        if known is None:
            if len(self.schemas) < MAX_SCHEMAS:
                return None
            return f"{MAX_SCHEMAS} schemas are registered: no room for {change.schema_id}"
        if known_schema(change.schema_id, change.document).hash == known.hash:
            return None
        return f"the schema {change.schema_id} is registered with other content: give it a new version"

    def apply(self, change: AnyChange) -> bool:
        """Apply a change once; False when it was applied before."""
        if change.change_id in self._changes:
            return False
        self._changes.add(change.change_id)
        if isinstance(change, SchemaAdded):
            self.schemas.setdefault(change.schema_id, known_schema(change.schema_id, change.document))
        elif isinstance(change, ContractAdded):
            self.contracts.register(change.contract(), change.revision)
        elif isinstance(change, AgentAdded):
            self._put(change.registration())
        elif change.agent_id in self.by_id:
            self._put(replace(self.by_id[change.agent_id], is_revoked=True))
        return True

    def _put(self, registration: Registration) -> None:
        self.by_id[registration.agent_id] = registration
        self._neighbours.put(registration)

    @property
    def hosts(self) -> set[str]:
        """The hosts on which agents are registered that are not revoked."""
        return self._neighbours.hosts

    def shared_users(self) -> dict[str, list[str]]:
        """Return broker user -> its agents, where there are several: each of them can speak as the others.

        Not the user of a host, which is meant to be shared.
        """
        sharing: dict[str, list[str]] = {}
        for one in self.by_id.values():
            if not one.is_revoked and one.kind is Kind.AGENT and one.broker_user != f"host.{one.host}":
                sharing.setdefault(one.broker_user, []).append(one.agent_id)
        return {user: agents for user, agents in sharing.items() if len(agents) > 1}

    def users_agent(self, user_id: str | None, claimed: str | None) -> Registration | None:
        """Return the authenticated speaker.

        The claimed agent if it has that user, else the only agent with that user.
        """
        agent = self.by_id.get(claimed) if claimed else None
        if agent is not None and agent.kind is Kind.PERSON:
            return None  # a person has no inbox: it reads the verdict in the log
        if agent is not None and agent.speaks_as(user_id):
            return agent
        agents = [known for known in self.by_id.values() if known.has_inbox and known.agent_id != ORCHESTRATOR]
        having = [known for known in agents if known.broker_user == user_id]
        return having[0] if len(having) == 1 else None
