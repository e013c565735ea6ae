"""The effects that agents make once."""

from datetime import timedelta

from pydantic import Field

from apc_bus.settings.durations import Duration
from apc_bus.settings.setting_sources import ApcSettings


class EffectSettings(ApcSettings):
    """Lease and retention of effects of ctx.once."""

    effect_lease: Duration = Field(default=timedelta(seconds=15), gt=timedelta(0))
    """Time without a renewal after which an unrecorded effect of ctx.once is unknown."""
    effect_poll: Duration = Field(default=timedelta(seconds=1), gt=timedelta(0))
    """Interval of the checks whether another handler has made the effect."""
    effect_retention: Duration = Field(default=timedelta(days=7), ge=timedelta(0))
    """How long effects are kept after their packet has expired; unknown ones stay until they are settled."""
