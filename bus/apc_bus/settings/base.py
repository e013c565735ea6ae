"""Where every setting comes from: a variable of the environment, else `.env`, else its default."""

from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "APC_"


class ApcSettings(BaseSettings):
    """Settings of one subject. A field is declared in one class alone; what several services read, they inherit."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )


def variable_of(kind: type[BaseSettings], field: str) -> str:
    """The environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()
