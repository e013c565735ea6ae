"""`apc worker`: an agent as a process, with its health pages."""

from apc_agents.running.service import run_worker
from apc_agents.running.worker import Worker
from apc_agents.team import load_agent
from apc_bus.settings import ConsoleSettings
from apc_bus.trace_export import export_traces
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
    if settings.supervised:
        end_with_supervisor()
    agent, running = load_agent(module), _Running()
    export_traces(f"apc-worker-{agent.agent_id}")
    with serve_health(settings.health_host, settings.health_port, running.problems):
        await run_worker(agent, on_worker=running.take)
