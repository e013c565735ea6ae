"""Support for tests of whoever reads packets: bytes that are made to stop a reader."""

from apc_contracts.testing.hostile_bytes import HostileBytes

__all__ = ["HostileBytes"]
