"""`apc worker` and `apc serve agents`: an agent, or a host of many, as a process with its health pages."""

from collections.abc import Sequence

from apc_agents.running.host import Host, run_host
from apc_agents.running.service import run_worker
from apc_agents.running.worker import Worker
from apc_agents.team import load_agent, load_members
from apc_bus.settings import ConsoleSettings
from apc_bus.telemetry import agent_labels
from apc_bus.trace_export import export_traces
from apc_cli.errors import InputUnusable
from apc_cli.health import serve_health
from apc_cli.system.running import configure, end_with_supervisor


class _Running:
    """The current worker: a new one is created when the broker was away at the start."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def take(self, worker: Worker) -> None:
        self._worker = worker

    def problems(self) -> list[str]:
        """Return why the process is not ready, one sentence each."""
        return ["broker, database or queues are not there yet"] if self._worker is None else self._worker.problems


async def run_agent(module: str) -> None:
    """Run an agent until SIGTERM. Raises AgentNotFound, InputUnusable, and the errors of its on_start."""
    settings = ConsoleSettings()
    configure(settings.log_level)
    agent_labels.most = settings.agent_metrics
    if settings.supervised:
        end_with_supervisor()
    agent, running = load_agent(module), _Running()
    export_traces(f"apc-worker-{agent.agent_id}")
    with serve_health(settings.health_host, settings.health_port, running.problems):
        await run_worker(agent, on_worker=running.take)


class _RunningHost:
    """The current host: a new one is created when the broker was away at the start."""

    def __init__(self) -> None:
        self._host: Host | None = None

    def take(self, host: Host) -> None:
        self._host = host

    def problems(self) -> list[str]:
        """Return why the process is not ready, one sentence each."""
        return ["broker, database or queues are not there yet"] if self._host is None else self._host.problems

    def remarks(self) -> list[str]:
        """Return how many agents run, and which are stuck, one sentence each."""
        return [] if self._host is None else self._host.remarks


async def run_agents(host: str, names: Sequence[str]) -> None:
    """Run agents, and all members of teams, in this process until SIGTERM.

    Raises AgentNotFound, AgentInvalid, InputUnusable without a name.
    """
    settings = ConsoleSettings()
    configure(settings.log_level)
    agent_labels.most = settings.agent_metrics
    if settings.supervised:
        end_with_supervisor()
    if not names:
        raise InputUnusable("name an agent or a team as package.module:name, or give a file of them with --from")
    members = {place: agent for name in names for place, agent in load_members(name).items()}
    agents, running = list({id(agent): agent for agent in members.values()}.values()), _RunningHost()
    places = {agent.agent_id: place for place, agent in members.items()}
    export_traces(f"apc-host-{host}")
    with serve_health(settings.health_host, settings.health_port, running.problems, running.remarks):
        await run_host(host, agents, places=places, on_host=running.take)
