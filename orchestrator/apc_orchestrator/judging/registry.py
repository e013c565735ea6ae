"""The registry in the gate's memory: read from the logged changes (view `agents`), then updated as changes arrive."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

import asyncpg

from apc_contracts.identity.people import voice_objection
from apc_contracts.identity.registry import ANY_SCHEMA, Kind, Registration, Right
from apc_contracts.identity.registry_change import AgentAdded, AnyChange, SchemaAdded
from apc_contracts.schemas.schema import MAX_SCHEMAS, RegisteredSchema, known_schema
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType
from apc_log.registry import read_changes, read_registry, read_schemas


class Registry:
    """agent_id -> Registration; the orchestrator itself is always present, with every right."""

    def __init__(
        self,
        broker_user: str,
        registrations: Mapping[str, Registration],
        changes: set[UUID],
        schemas: Mapping[str, RegisteredSchema] | None = None,
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
        )
        self.schemas: dict[str, RegisteredSchema] = dict(schemas or {})
        """schema_id -> the schema of that name and version; a version never changes."""
        self._changes = changes

    @classmethod
    async def load(cls, pool: asyncpg.Pool, broker_user: str, shard: int) -> "Registry":
        """Read the registry as the log of this shard left it."""
        registrations = await read_registry(pool)
        return cls(broker_user, registrations, await read_changes(pool, shard), await read_schemas(pool))

    def objection(self, change: AnyChange, trusted: Collection[str] = ()) -> str | None:
        """Return why a change cannot be applied; None when it can, or was.

        The broker users in `trusted` may change the registry, and so may speak for anybody.
        """
        if change.change_id in self._changes:
            return None
        if isinstance(change, SchemaAdded):
            return self._objection_to_schema(change)
        if isinstance(change, AgentAdded):
            others = [one for one in self.by_id.values() if one.agent_id != ORCHESTRATOR]
            return voice_objection(change.registration(), others, trusted)
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
        elif isinstance(change, AgentAdded):
            self.by_id[change.agent_id] = change.registration()
        elif change.agent_id in self.by_id:
            self.by_id[change.agent_id] = replace(self.by_id[change.agent_id], is_revoked=True)
        return True

    def shared_users(self) -> dict[str, list[str]]:
        """Return broker user -> its agents, where there are several: each of them can speak as the others."""
        sharing: dict[str, list[str]] = {}
        for one in self.by_id.values():
            if not one.is_revoked and one.kind is Kind.AGENT:
                sharing.setdefault(one.broker_user, []).append(one.agent_id)
        return {user: agents for user, agents in sharing.items() if len(agents) > 1}

    def users_agent(self, user_id: str | None, claimed: str | None) -> Registration | None:
        """Return the authenticated speaker.

        The claimed agent if it has that user, else the only agent with that user.
        """
        found = self.by_id.get(claimed) if claimed else None
        if found is not None and found.kind is Kind.PERSON:
            return None  # a person has no inbox: it reads the verdict in the log
        if found is not None and found.broker_user == user_id:
            return found
        agents = [one for one in self.by_id.values() if one.kind is Kind.AGENT and one.agent_id != ORCHESTRATOR]
        having = [one for one in agents if one.broker_user == user_id]
        return having[0] if len(having) == 1 else None
