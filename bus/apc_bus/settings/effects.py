"""The effects that agents make once."""

from datetime import timedelta

from pydantic import Field

from apc_bus.durations import Duration
from apc_bus.settings.base import ApcSettings


class EffectSettings(ApcSettings):
    """How long an effect of ctx.once may be under way, and how long it is remembered."""

    effect_lease: Duration = Field(default=timedelta(seconds=15), gt=timedelta(0))
    """After so long without a sign of life of its worker an effect of ctx.once that is not recorded is unknown."""
    effect_poll: Duration = Field(default=timedelta(seconds=1), gt=timedelta(0))
    """How long a handler may take to see that another one has made the effect it waits for."""
    effect_retention: Duration = Field(default=timedelta(days=7), ge=timedelta(0))
    """How long effects are kept after their packet has expired; unknown ones stay until they are settled."""
