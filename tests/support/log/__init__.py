"""Log batches by hand, for the tests and benchmarks of everything that writes or reads the log."""

from tests.support.log.bench import LogBench, lift_guard
from tests.support.log.dividing import divide
from tests.support.log.entries import coordination, hop, lifecycle, packet_entry, session_row
from tests.support.log.gate import ScriptedGate
from tests.support.log.killing import freeze_embedded, kill_embedded
from tests.support.log.replaying import replay_everything
from tests.support.log.scanning import bytes_of_tables
from tests.support.log.tampering import disable_guards
from tests.support.waiting import until

__all__ = [
    "LogBench",
    "ScriptedGate",
    "bytes_of_tables",
    "coordination",
    "disable_guards",
    "divide",
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
