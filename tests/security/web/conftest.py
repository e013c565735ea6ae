"""The API over a session that a real gate judged, as `tests/web` has it."""

from tests.orchestrator.waiting.conftest import office
from tests.web.conftest import bench, house, idea, told

__all__ = ["bench", "house", "idea", "office", "told"]
