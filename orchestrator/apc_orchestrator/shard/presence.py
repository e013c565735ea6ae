"""Look who is here, beside the judging: hosts at the broker each second, and signs of life to the persister."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from time import monotonic

from apc_bus.telemetry import get_logger
from apc_bus.topology import gate_queue, host_queue
from apc_contracts.identity.registry_change import HostPresence
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.publications import signs_of_life
from apc_orchestrator.shard.intake import ShardResources

LOOK_SECONDS = 1.0
"""Between two looks at the hosts: after the second one without a consumer a host is gone."""

LOOKS_WITHOUT = 2
"""So often in a row a host must have no consumer before it counts as gone: one that restarts at once is not."""
RETURN_SECONDS = 15.0
"""How long hosts have to come back to a broker that did not answer, or that we lost too: then their absence counts."""

_log = get_logger("apc_orchestrator")


class HostLooks:
    """Makes changes out of what the broker says about the consumers of hosts. Pure: the caller looks, and logs.

    Args:
        logged: host -> whether it is here by the log.
        since: seconds of the monotonic clock at which our own connection to the broker began.
    """

    def __init__(self, logged: Mapping[str, bool], since: float = -inf) -> None:
        self._is_here = dict(logged)
        self._empty: dict[str, int] = {}
        self._doubtful_at = since

    @property
    def present(self) -> frozenset[str]:
        """The hosts that are here."""
        return frozenset(host for host, is_here in list(self._is_here.items()) if is_here)

    @property
    def gone(self) -> frozenset[str]:
        """The hosts that were here."""
        return frozenset(host for host, is_here in list(self._is_here.items()) if not is_here)

    def take(self, counts: Mapping[str, int | None], now: float) -> dict[str, bool]:
        """Return the hosts that changed, and whether each is here now.

        Args:
            counts: host -> its consumers; None = the broker did not say.
            now: seconds of the monotonic clock.
        """
        if None in counts.values():
            self._doubtful_at = now
        is_doubtful = now - self._doubtful_at < RETURN_SECONDS
        changed = {}
        for host, count in counts.items():
            is_here = self._is_here.get(host, False)
            self._empty[host] = self._empty.get(host, 0) + 1 if count == 0 and is_here and not is_doubtful else 0
            if (count and not is_here) or self._empty[host] >= LOOKS_WITHOUT:
                self._is_here[host] = changed[host] = not is_here
        self._empty = {host: empty for host, empty in self._empty.items() if empty and self._is_here[host]}
        return changed


class PresenceWatch:
    """Asks the broker for the consumers of hosts, while this is the lease of shard 0, and reports signs of life.

    A change of a host waits until the next batch logs it. The hosts that are here by the log are read with the
    registry, so that a takeover repeats nothing.

    Args:
        resources: of the lease.
        memory: holds the registry and the signs.
        wake: called when there is a change to be logged.
    """

    def __init__(self, resources: ShardResources, memory: ShardMemory, wake: Callable[[], None]) -> None:
        self._resources = resources
        self._memory = memory
        self._wake = wake
        self._looks = HostLooks(resources.registry.logged_hosts, resources.listening_since)
        self._changes: deque[tuple[str, HostPresence]] = deque()

    @property
    def hosts(self) -> tuple[int, int]:
        """How many hosts are here, and how many of those with agents are gone; from any thread."""
        return len(self._looks.present), len(self._looks.gone & self._resources.registry.hosts)

    def judge(self, batch: Batch, judge: Judge) -> None:
        """Log the changes since the last batch."""
        while self._changes:
            judge.note_host(batch, *self._changes.popleft())

    async def run(self) -> None:
        """Look and report until cancelled."""
        while True:
            if self._resources.lease.shard == 0:
                await self._look_at_hosts()
            await self._report()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_hosts(self) -> None:
        registered = self._resources.registry.hosts
        queues = {host_queue(host, urgent=True): host for host in sorted(registered | self._looks.present)}
        if not queues:
            return
        # A broker amid an election, or at its start, knows no consumer of any queue: not even this one's.
        own = gate_queue(self._resources.lease.shard)
        counts = await self._resources.bus.consumers([own, *queues])
        is_known = bool(counts[own])
        hosts = {host: counts[queue] if is_known else None for queue, host in queues.items()}
        changed = self._looks.take(hosts, monotonic())
        for host, is_here in changed.items():
            presence = HostPresence.APPEARED if is_here else HostPresence.GONE
            _log.info("host_appeared" if is_here else "host_gone", host=host)
            self._changes.append((host, presence))
        if changed:
            self._wake()

    async def _report(self) -> None:
        due = self._memory.signs.take_due(datetime.now(UTC))
        if not due:
            return
        errors = await self._resources.bus.publish_all(list(signs_of_life(due, self._resources.lease)))
        problem = next((error for error in errors if error is not None), None)
        if problem is not None:
            self._memory.signs.give_back(due)
            _log.warning("signs_of_life_unreported", agents=len(due), reason=str(problem))
