"""Faults on purpose, seeded: a bus that loses, delays, doubles, reorders and damages what an agent sends and gets."""

from apc_bus.chaos.bus import ChaosBus, disturb
from apc_bus.chaos.profile import ChaosProfile, Fault, FaultKind, Side, load_profile
from apc_bus.chaos.score import Score

__all__ = ["ChaosBus", "ChaosProfile", "Fault", "FaultKind", "Score", "Side", "disturb", "load_profile"]
