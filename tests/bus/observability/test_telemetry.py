"""One log line is one JSON object, no matter who wrote it."""

import json
import os
import subprocess
import sys

PROGRAM = """
import logging, structlog
from apc_bus.telemetry import configure_logs
configure_logs("INFO", "json")
structlog.contextvars.bind_contextvars(session_id="s-1")
log = structlog.get_logger("t").bind(packet_id="p-1")
log.info("packet_published", shard=0)
log.debug("not_written")
logging.getLogger("library").warning("from %s", "elsewhere")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("handler_failed")
"""


def test_lines_are_json() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout == ""
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["packet_published", "from elsewhere", "handler_failed"]
    assert lines[0]["packet_id"] == "p-1"
    assert lines[0]["session_id"] == "s-1"
    assert lines[0]["level"] == "info"
    assert lines[2]["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_a_standard_error_that_cannot_be_written_ends_nothing() -> None:
    """A full disk, a pipe whose reader has left, and none at all."""
    program = PROGRAM + "\nprint('went on')\n"
    with open("/dev/full", "w") as full:
        results = [subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True)]
    reader, writer = os.pipe()
    os.close(reader)
    results.append(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=writer, text=True))
    os.close(writer)
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", program]
    results.append(subprocess.run(closed, stdout=subprocess.PIPE, text=True))
    assert [(one.returncode, one.stdout) for one in results] == 3 * [(0, "went on\n")]


def test_a_traceback_tells_no_local_variables() -> None:
    program = PROGRAM.replace("1 / 0", "url = 'amqp://me:' + 'hunter' + '2@broker/'; 1 / 0")
    for form in ("json", "console"):
        result = subprocess.run(
            [sys.executable, "-c", program.replace('"json"', f'"{form}"')], capture_output=True, text=True, check=True
        )
        assert "ZeroDivisionError" in result.stderr
        assert "hunter2" not in result.stderr


UNCONFIGURED = """
import logging
from apc_bus.telemetry import get_logger
log = get_logger("apc_client.connecting")
log.info("not_written")
log.warning("broker_away", reason="\\x1b[31mred\\nsecond line")
logging.basicConfig(level="DEBUG", format="%(levelname)s %(name)s %(funcName)s: %(message)s")
def told() -> None:
    log.debug("packet_emitted", packet_id="p-1")
told()
try:
    1 / 0
except ZeroDivisionError:
    log.warning("handler_failed", exc_info=True)
"""


def test_a_program_that_sets_no_logs_up_has_its_standard_output_for_itself() -> None:
    """structlog's default would print six lines there, the debug ones too; `logging` has the say."""
    result = subprocess.run([sys.executable, "-c", UNCONFIGURED], capture_output=True, text=True, check=True)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[:4] == [
        "broker_away reason='\\x1b[31mred\\nsecond line'",
        "DEBUG apc_client.connecting told: packet_emitted packet_id='p-1'",
        "WARNING apc_client.connecting <module>: handler_failed",
        "Traceback (most recent call last):",
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_program_that_sets_structlog_up_later_gets_our_events_there() -> None:
    program = UNCONFIGURED.replace(
        "logging.basicConfig(", "import apc_bus.telemetry as t; t.configure_logs('DEBUG', 'json'); dict("
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("broker_away ")
    assert [json.loads(line)["event"] for line in rest] == ["packet_emitted", "handler_failed"]
