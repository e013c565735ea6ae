"""The model that the settings name."""

from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider
from pydantic_ai.settings import ModelSettings

from apc_agents.llm.errors import ModelUnusable
from apc_bus.settings import LLMSettings


def make_model(settings: LLMSettings) -> Model:
    """Return the model of APC_LLM_MODEL; with APC_LLM_BASE_URL one of a service that speaks OpenAI's API.

    Raises:
        ModelUnusable: no model is named, pydantic-ai knows no such provider, or its key is missing.
    """
    if settings.model is None:
        raise ModelUnusable("no model: set APC_LLM_MODEL to provider:name, such as openai:gpt-5")
    if settings.base_url is not None:
        return _compatible_model(settings.model, settings.base_url, settings)
    try:
        return infer_model(settings.model, lambda name: _provider(name, settings))
    except (UserError, ValueError) as error:
        raise ModelUnusable(f"APC_LLM_MODEL={settings.model}: {error}") from error
    except ImportError as error:
        raise ModelUnusable(f"APC_LLM_MODEL={settings.model} needs a package that is not installed: {error}") from error


def model_settings(settings: LLMSettings) -> ModelSettings:
    """Return what every request tells the provider."""
    told = ModelSettings(timeout=settings.timeout.total_seconds())
    if settings.answer_tokens is not None:
        told["max_tokens"] = settings.answer_tokens
    if settings.temperature is not None:
        told["temperature"] = settings.temperature
    return told


def _compatible_model(name: str, base_url: str, settings: LLMSettings) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    try:
        provider = OpenAICompatibleProvider("apc", base_url=base_url, api_key=_key(settings))
        return OpenAIChatModel(name.removeprefix("openai:"), provider=provider)
    except (UserError, ValueError) as error:
        raise ModelUnusable(f"APC_LLM_BASE_URL cannot be used: {error}") from error


def _provider(name: str, settings: LLMSettings) -> Provider[Any]:
    key = _key(settings)
    if key is None or not name.startswith("openai"):
        return infer_provider(name)
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIProvider(api_key=key)


def _key(settings: LLMSettings) -> str | None:
    return None if settings.api_key is None else settings.api_key.get_secret_value()
