"""A persister at work on a fresh database and the in-process broker, fed by a scripted gate."""

from tests.log.archive.conftest import archived
from tests.persister.conftest import bench, pool

__all__ = ["archived", "bench", "pool"]
