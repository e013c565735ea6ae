"""A gate and a persister at work in one process, as the orchestrator's own tests have them."""

from tests.orchestrator.conftest import house, idea, packet, running, start

__all__ = ["house", "idea", "packet", "running", "start"]
