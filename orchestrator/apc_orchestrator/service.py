"""The orchestrator process: a gate for each shard, and the reader of the dead queue."""

import asyncio
from functools import partial

import asyncpg

from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import Backoff, Health, cancelled, first_of, keep_running, until_stopped
from apc_bus.database import DATABASE_AWAY, problems_of
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus
from apc_bus.settings import OrchestratorSettings
from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_contracts.contract.collection import load_contracts
from apc_contracts.limits import DocumentLimits
from apc_contracts.wire.parsing import packet_validator
from apc_log.placement import LogDatabases, check_places, read_open_sessions
from apc_orchestrator.dead_letters import read_dead_letters
from apc_orchestrator.gate import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Gate, OtherShards, SharedByShards
from apc_orchestrator.lease import Fence, Places, Questions
from apc_orchestrator.telemetry import ShardState, follow_gates

_log = get_logger("apc_orchestrator")


class Orchestrator:
    """Gates for the shards of this process, and the reader of the dead queue."""

    def __init__(
        self,
        settings: OrchestratorSettings,
        bus: Bus,
        pool: asyncpg.Pool,
        artifacts: ArtifactStore,
        *,
        databases: LogDatabases | None = None,
    ) -> None:
        """Create the gates, over the database of the pool, or over it and others: then it is the home of `databases`.

        Raises ContractInvalid when the contract file of the settings cannot be used.
        """
        contracts = load_contracts(settings.contract)
        bounds = contracts.default.limits
        self._limits = DocumentLimits(bounds.packet_bytes, bounds.nesting_levels, bounds.nodes)
        self._settings = settings
        self._bus = bus
        self._databases = databases or LogDatabases(pool)
        self._health = Health()
        self._last_resort = LastResort(settings.data_dir, DATABASE_AWAY)
        self._others = OtherShards(self._databases)
        questions = Questions(bus, Fence.of(settings.heartbeat), self._health)
        self._places = Places(settings, bus, self._databases)
        shared = SharedByShards(self._health, self._last_resort, questions, self._others, self._places, self._databases)
        self._gates = [Gate(settings, contracts, bus, artifacts, shard, shared) for shard in settings.own_shards]
        follow_gates(self)

    @property
    def shards(self) -> list[ShardState]:
        """The shards that this process holds now."""
        return [gate.state for gate in self._gates]

    @property
    def is_ready(self) -> bool:
        """Whether each shard is served or stood by for, the bus works, and no background task has failed."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Why the process is not ready, one sentence per reason; callable from any thread.

        It is ready for a shard that another process holds, if it would take over: what is served at all is for the
        metric apc_gate_shards_held to say.
        """
        waiting = [state for state in self.shards if not (state.is_active or state.is_standing_by)]
        waiting = [state for state in waiting if not self._places.is_elsewhere(state.shard)]
        unheld = [f"shard {state.shard} is not held" for state in waiting]
        away = [problem for pool in self._databases.known_pools for problem in problems_of(pool)]
        return unheld + away + self._health.problems + self._bus.problems

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then drain.

        Raises:
            ShardsDiffer: the sessions that are open were placed by another number of shards.
            TaskEnded, CallAborted, Exception: a gate or the reader of dead letters has ended before; a gate that loses
                its shard does not end.
        """
        packet_validator()  # the first packet does not wait for it
        await self._check_places(stop)
        gates = until_stopped(stop, {f"the gate of shard {gate.state.shard}": gate.run(stop) for gate in self._gates})
        serving = asyncio.create_task(gates)
        letters = read_dead_letters(self._bus, self._settings.shards, self._limits, self._health, self._last_resort)
        try:
            await first_of(serving, letters, self._follow_others(stop), self._follow_places(stop))
        finally:
            await cancelled(serving)
        _log.info("orchestrator_stopped")

    async def _follow_others(self, stop: asyncio.Event) -> None:
        if self._settings.shards > 1:
            follow = partial(self._others.follow, self._settings.other_shards_seconds)
            await keep_running(follow, task="the verdicts of other shards", health=self._health, stop=stop)
        await asyncio.Event().wait()  # the gates go on until they are drained

    async def _follow_places(self, stop: asyncio.Event) -> None:
        await keep_running(self._places.follow, task="the places of shards", health=self._health, stop=stop)
        await asyncio.Event().wait()

    async def _check_places(self, stop: asyncio.Event) -> None:
        """Compare the open sessions with the number of shards, once the database answers."""
        shards, backoff = self._settings.shards, Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, stop)
        while not stop.is_set():
            try:
                lost = check_places(await self._open_sessions(), shards)
            except DATABASE_AWAY as error:
                _log.warning("database_awaited", reason=str(error))
                await backoff.wait()
                continue
            if lost:
                reason = "they were opened with several numbers of shards: `apc doctor` says what to do"
                _log.error("sessions_misplaced", count=len(lost), session_id=lost[0], reason=reason)
            return

    async def _open_sessions(self) -> dict[str, int]:
        """Return the open sessions of all databases; those of one that is away are left out, but for home's."""
        await self._databases.look()
        found: dict[str, int] = {}
        for name, pool in self._databases.pools.items():
            try:
                sessions = await read_open_sessions(pool)
            except DATABASE_AWAY as error:
                if name == HOME:
                    raise
                _log.warning("database_awaited", database=name, reason=str(error))
                continue
            places = {session_id: self._databases.place_of(shard) for session_id, shard in sessions.items()}
            found |= {one: shard for one, shard in sessions.items() if places[one].database == name}
        return found


async def serve_orchestrator(
    settings: OrchestratorSettings,
    bus: Bus,
    pool: asyncpg.Pool,
    artifacts: ArtifactStore,
    stop: asyncio.Event,
) -> None:
    """Run an orchestrator until `stop`.

    Raises:
        ContractInvalid: the contract file of the settings cannot be used.
    """
    await Orchestrator(settings, bus, pool, artifacts).run(stop)
