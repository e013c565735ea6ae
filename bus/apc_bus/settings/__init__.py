"""Every setting, one module for each subject, composed by service; from the environment (prefix APC_) and `.env`."""

from apc_bus.settings.agents.context import SituationSettings
from apc_bus.settings.agents.language import LanguageSettings
from apc_bus.settings.agents.llm import LLMSettings
from apc_bus.settings.agents.relevance import RelevanceSettings
from apc_bus.settings.agents.signing import SigningSettings
from apc_bus.settings.artifacts import ArtifactSettings
from apc_bus.settings.automl import AutomlSettings
from apc_bus.settings.broker import BrokerSettings
from apc_bus.settings.chaos import ChaosSettings
from apc_bus.settings.console import ConsoleSettings
from apc_bus.settings.database import DatabaseSettings
from apc_bus.settings.deployment import DeploymentSettings
from apc_bus.settings.log.encryption import EncryptionSettings
from apc_bus.settings.log.log_key import LogKeySettings
from apc_bus.settings.services import (
    READ_BY,
    SERVICES,
    BusSettings,
    OrchestratorSettings,
    PersisterSettings,
    WorkerSettings,
    all_settings,
)
from apc_bus.settings.setting_sources import ApcSettings, variable_of
from apc_bus.settings.tracing import TraceSettings
from apc_bus.settings.web import WebSettings

__all__ = [
    "READ_BY",
    "SERVICES",
    "ApcSettings",
    "ArtifactSettings",
    "AutomlSettings",
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
    "variable_of",
]
