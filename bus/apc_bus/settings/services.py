"""What each service reads: its subjects, composed."""

from collections.abc import Iterator

from apc_bus.settings.agents.context import SituationSettings
from apc_bus.settings.agents.effects import EffectSettings
from apc_bus.settings.agents.language import LanguageSettings
from apc_bus.settings.agents.llm import LLMSettings
from apc_bus.settings.agents.relevance import RelevanceSettings
from apc_bus.settings.agents.signing import SigningSettings
from apc_bus.settings.agents.tasks import TaskSettings
from apc_bus.settings.artifacts import ArtifactSettings
from apc_bus.settings.automl import AutomlSettings
from apc_bus.settings.broker import BrokerSettings
from apc_bus.settings.chaos import ChaosSettings
from apc_bus.settings.console import ConsoleSettings
from apc_bus.settings.database import DatabaseSettings
from apc_bus.settings.delivery import DeliverySettings
from apc_bus.settings.deployment import DeploymentSettings
from apc_bus.settings.gate import GateSettings
from apc_bus.settings.log.encryption import EncryptionSettings
from apc_bus.settings.log.log_key import LogKeySettings
from apc_bus.settings.log.log_writer import LogWriterSettings
from apc_bus.settings.setting_sources import ApcSettings
from apc_bus.settings.tracing import TraceSettings
from apc_bus.settings.web import WebSettings


class BusSettings(BrokerSettings, ArtifactSettings, ChaosSettings):
    """Whatever is on the bus: the broker, the artifacts, and the faults that strike."""


class OrchestratorSettings(GateSettings, BrokerSettings, EncryptionSettings):
    """The orchestrator."""


class PersisterSettings(LogWriterSettings, BrokerSettings, DatabaseSettings, EncryptionSettings):
    """The persister."""


class WorkerSettings(
    DeploymentSettings, DatabaseSettings, DeliverySettings, SigningSettings, TaskSettings, EffectSettings
):
    """A worker: what it takes, publishes and keeps. Without `database_url` its state ends with it."""


READ_BY: dict[str, tuple[type[ApcSettings], ...]] = {
    "orchestrator": (OrchestratorSettings, BusSettings, DatabaseSettings, TraceSettings),
    "persister": (PersisterSettings, BusSettings, DatabaseSettings, TraceSettings),
    "worker": (WorkerSettings, BusSettings, DatabaseSettings, TraceSettings),
    "agents": (SituationSettings, RelevanceSettings, LanguageSettings),
    "automl": (AutomlSettings,),
    "llm": (LLMSettings,),
    "console": (
        ConsoleSettings,
        BusSettings,
        DatabaseSettings,
        EncryptionSettings,
        LogKeySettings,
        SigningSettings,
        TraceSettings,
        WebSettings,
    ),
}
"""Who reads which settings."""

SERVICES = frozenset({"orchestrator", "persister", "worker", "console"})
"""The processes of a deployment; the other readers are parts of a worker."""


def all_settings() -> Iterator[type[ApcSettings]]:
    """Yield every class of settings that somebody reads, once."""
    yield from dict.fromkeys(kind for kinds in READ_BY.values() for kind in kinds)
