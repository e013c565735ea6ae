"""Test support for readers of packets: hostile bytes."""

from apc_contracts.testing.hostile_bytes import HostileBytes

__all__ = ["HostileBytes"]
