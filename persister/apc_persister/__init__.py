"""The persister: writes what the gate decided into the append-only log, and reads it back.

Promises: one transaction a log batch or more, gap-free sequence numbers, nothing acknowledged before COMMIT.
"""

from apc_bus.settings import PersisterSettings
from apc_persister.database.embedded import EmbeddedPostgres, start_embedded
from apc_persister.database.migrate import migrate, schema_version
from apc_persister.service import Persister, serve_persister

__all__ = [
    "EmbeddedPostgres",
    "Persister",
    "PersisterSettings",
    "migrate",
    "schema_version",
    "serve_persister",
    "start_embedded",
]
