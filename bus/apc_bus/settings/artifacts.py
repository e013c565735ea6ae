"""Where the artifacts are."""

from pydantic import Field, field_validator

from apc_bus.settings.deployment import DeploymentSettings
from apc_bus.settings.setting_sources import check_scheme


class ArtifactSettings(DeploymentSettings):
    """The artifact store and its limits."""

    artifacts_url: str | None = None
    """Artifact store: `file:///…`, `s3://bucket/prefix`, or a folder; none = `<data_dir>/artifacts`. Endpoint, region
    and keys of `s3://` come from the environment, as AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on."""
    artifacts_allow_http: bool = False
    """Allow `s3://` over plain HTTP: for a server without TLS on this machine."""
    artifacts_upload_url: str | None = Field(default=None, pattern="^https?://[^/?#]+/?$")
    """`http://host:port` of `apc serve artifacts`, which stores uploads; none = this process writes to the store
    itself."""
    max_artifact_bytes: int = Field(default=1 << 30, ge=1)
    """Largest artifact that the store accepts."""

    @field_validator("artifacts_url")
    @classmethod
    def _check_artifacts_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_scheme(value, ("file", "s3", "memory"), or_folder=True)
        return value

    @property
    def artifacts(self) -> str:
        """URL or folder of the artifact store."""
        return self.artifacts_url or str(self.data_dir / "artifacts")
