"""A recipe: everything that makes a model besides the data and the seed, as canonical JSON."""

import hashlib
import json
from typing import Self

import rfc8785
from pydantic import BaseModel, ConfigDict, field_validator

Setting = bool | int | float | str | None


class Recipe(BaseModel):
    """A method. Its canonical bytes go to the artifact store; their hash is the protocol_id of a TRANSFER."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    family: str
    """A key of `spaces.FAMILIES`."""
    preprocessing: dict[str, Setting]
    parameters: dict[str, Setting]
    parents: tuple[str, ...] = ()
    """Hashes of the recipes that this one was tuned from."""
    ancestor_swarms: tuple[str, ...] = ()
    """The swarms through which its line came, the oldest first."""

    @field_validator("preprocessing", "parameters")
    @classmethod
    def _whole_numbers_are_integers(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        # JSON knows one kind of number: a recipe that was read back must not differ from the one that was written.
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in settings.items()
        }

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes of a recipe."""
        return rfc8785.dumps(self.model_dump(mode="json"))

    @property
    def hash(self) -> str:
        """`sha256:` + hex of the canonical bytes, as the artifact store names them."""
        return "sha256:" + hashlib.sha256(self.canonical()).hexdigest()

    @property
    def method(self) -> str:
        """Hash of what is trained, whatever its ancestry: two recipes with one method make one model."""
        method = self.model_dump(mode="json", include={"family", "preprocessing", "parameters"})
        return hashlib.sha256(rfc8785.dumps(method)).hexdigest()

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the inverse of `canonical`."""
        return cls.model_validate(json.loads(data))

    def describe(self) -> str:
        """Return a line for people: family and settings."""
        settings = {**self.parameters, **self.preprocessing}
        return f"{self.family} ({', '.join(f'{name}={value}' for name, value in sorted(settings.items()))})"
