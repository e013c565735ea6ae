"""The exporter's gauges for `/metrics`."""

from prometheus_client import Gauge

from apc_persister.evidence.export.exporter import Exporter

_AGE = Gauge(
    "apc_log_exported_checkpoint_age_seconds",
    "Age of the newest checkpoint outside the database: what is younger could be rewritten unseen.",
)
_EXPOSED = Gauge(
    "apc_log_checkpoint_waiting_seconds",
    "For how long the oldest checkpoint waits that is not exported; 0 when all are.",
)


def publish_gauges(exporter: Exporter) -> None:
    """Publish the exporter's figures as gauges of this process."""
    _AGE.set_function(lambda: exporter.exported_age_seconds)
    _EXPOSED.set_function(lambda: exporter.exposed_seconds)
