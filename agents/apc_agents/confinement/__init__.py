"""Confinement: what a process gives up before it reads bytes of unknown origin.

Everything here is for the process that calls it, cannot be taken back, and needs no privilege.
"""

from apc_agents.confinement.confine import ProcessLimits, confine

__all__ = ["ProcessLimits", "confine"]
