"""Confinement: what a process that handles bytes of strangers gives up before it looks at them.

Everything here is for the process that calls it, cannot be taken back, and needs no privilege.
"""

from apc_agents.confinement.confine import ProcessLimits, confine

__all__ = ["ProcessLimits", "confine"]
