"""The database."""

from datetime import timedelta

from pydantic import Field, FilePath, SecretStr, field_validator

from apc_bus.settings.durations import Duration
from apc_bus.settings.setting_sources import ApcSettings, check_scheme
from apc_bus.tls import with_query


class DatabaseSettings(ApcSettings):
    """Where Postgres is."""

    database_url: SecretStr | None = None
    """`postgresql://…` (15 to 18), the primary or a list of all servers (`HOST1:5432,HOST2:5432`); none = the embedded
    PostgreSQL."""
    database_ca_file: FilePath | None = None
    """PEM file of the authorities that sign the server's certificate; implies TLS and a check of the server's name."""
    database_cert_file: FilePath | None = None
    """PEM file of the client certificate; none = the client has none."""
    database_key_file: FilePath | None = None
    """PEM file of its private key."""
    database_pool: int = Field(default=10, ge=1)
    """Maximum connections of one process."""
    database_wait: Duration = timedelta(seconds=10)
    """How long a start waits for a database that does not answer."""
    allow_undurable_database: bool = False
    """Start on a server with fsync, full_page_writes or synchronous_commit off (tests only)."""

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_scheme(value.get_secret_value(), ("postgresql", "postgres"))
        return value

    @property
    def url(self) -> str | None:
        """The URL of the database, password and places of certificates included; what it says itself stays."""
        if self.database_url is None:
            return None
        files = {
            "sslmode": "verify-full" if self.database_ca_file else None,
            "sslrootcert": self.database_ca_file,
            "sslcert": self.database_cert_file,
            "sslkey": self.database_key_file,
        }
        return with_query(self.database_url.get_secret_value(), files)
