"""Ships with the persister: real batches by hand, for the tests and benchmarks of whatever meets the log."""

from apc_persister.testing.bench import LogBench, lift_guard, until
from apc_persister.testing.entries import coordination, hop, lifecycle, packet_entry, session_row
from apc_persister.testing.gate import ScriptedGate
from apc_persister.testing.killing import freeze_embedded, kill_embedded
from apc_persister.testing.replaying import replay_everything
from apc_persister.testing.scanning import bytes_of_tables
from apc_persister.testing.tampering import disable_guards

__all__ = [
    "LogBench",
    "ScriptedGate",
    "bytes_of_tables",
    "coordination",
    "disable_guards",
    "freeze_embedded",
    "hop",
    "kill_embedded",
    "lifecycle",
    "lift_guard",
    "packet_entry",
    "replay_everything",
    "session_row",
    "until",
]
