"""Every setting, one module for each subject, composed by service; from the environment (prefix APC_) and `.env`."""

from apc_bus.settings.agents import LanguageSettings, LLMSettings, RelevanceSettings, SigningSettings, SituationSettings
from apc_bus.settings.broker import ArtifactSettings, BrokerSettings, ChaosSettings
from apc_bus.settings.database import ArchiveSettings, DatabaseSettings, EncryptionSettings, LogKeySettings
from apc_bus.settings.services import (
    SERVICES,
    A2ASettings,
    BusSettings,
    ConsoleSettings,
    OrchestratorSettings,
    PersisterSettings,
    TraceSettings,
    WebSettings,
    WorkerSettings,
    all_settings,
    read_by,
)
from apc_bus.settings.sources import ApcSettings, DeploymentSettings, variable_of

__all__ = [
    "SERVICES",
    "A2ASettings",
    "ApcSettings",
    "ArchiveSettings",
    "ArtifactSettings",
    "BrokerSettings",
    "BusSettings",
    "ChaosSettings",
    "ConsoleSettings",
    "DatabaseSettings",
    "DeploymentSettings",
    "EncryptionSettings",
    "LLMSettings",
    "LanguageSettings",
    "LogKeySettings",
    "OrchestratorSettings",
    "PersisterSettings",
    "RelevanceSettings",
    "SigningSettings",
    "SituationSettings",
    "TraceSettings",
    "WebSettings",
    "WorkerSettings",
    "all_settings",
    "read_by",
    "variable_of",
]
