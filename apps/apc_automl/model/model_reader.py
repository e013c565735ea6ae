"""Predictions of models that others made, by a process that can do nothing else, and the messages to it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Self

from apc_automl.errors import ModelFileRefused, TrainingUnavailable
from apc_automl.model.model_types import MARK, WITH_SKRUB
from apc_bus.telemetry import get_logger

LONGEST_LINE = 64 * 1024
LARGEST_REQUEST = 2**30
LARGEST_ANSWER = 2**26

Header = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Predict these rows with this model; `again` = also after one more way through a file."""

    model: bytes
    schema: bytes
    rows: bytes
    again: bool

    @classmethod
    def of(cls, header: Header, parts: list[bytes]) -> Self:
        """Return the request in a frame."""
        model, schema, rows = parts
        return cls(model, schema, rows, bool(header["again"]))

    def write(self, target: IO[bytes]) -> None:
        """Send it as a frame."""
        write_frame(target, {"again": self.again}, self.model, self.schema, self.rows)


def write_frame(target: IO[bytes], header: Header, *parts: bytes) -> None:
    """Send a header and its parts."""
    line = json.dumps(header | {"sizes": [len(part) for part in parts]}).encode()
    target.write(line + b"\n")
    for part in parts:
        target.write(part)
    target.flush()


def read_frame(source: IO[bytes], largest: int) -> tuple[Header, list[bytes]] | None:
    """Return the next header and its parts; None where the source has ended.

    Args:
        largest: bytes that the parts may have together.

    Raises:
        ValueError: this is no frame, or too large a one.
    """
    line = source.readline(LONGEST_LINE)
    if not line:
        return None
    header = json.loads(line)
    if not isinstance(header, dict):
        raise ValueError("a frame begins with a JSON object")
    sizes = header.pop("sizes", ())
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or sum(sizes) > largest:
        raise ValueError(f"the parts of a frame have at most {largest} bytes together")
    parts = [source.read(size) for size in sizes]
    if [len(part) for part in parts] != sizes:
        return None
    return header, parts


COMMAND = (sys.executable, "-I", "-m", "apc_automl.model.reader_process")
SECONDS = 240.0
"""The longest that one request, or the start of the process, may take by the clock; the CPU's limit is stricter."""
ATTEMPTS = 2
ENVIRONMENT = ("OPENBLAS_", "MKL_", "NPY_", "OMP_", "KMP_", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""What the process sees of the environment: what decides how numbers are computed, and no secret."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
LONGEST_REASON = 500

Answer = tuple[Header, list[bytes]]

log = get_logger("apc_automl")


class ModelReader:
    """One confined process, started at the first request and kept for the next ones; for many threads.

    It is restarted, with skrub, for the first model that has parts of skrub: nothing can be imported once it is
    confined.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND, seconds: float = SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._has_skrub = False

    def predict(self, request: Request) -> list[bytes]:
        """Return the predictions, as `predicting.read_predictions` takes them: one, or two with `again`.

        Raises:
            ModelFileRefused: the bytes are no model of ours, or the process that read them ended or took too long.
            TrainingUnavailable: the process does not start.
        """
        with self._lock:
            if MARK in request.model and not self._has_skrub:
                self._end()
                self._has_skrub = True
            for _ in range(ATTEMPTS):
                if self._is_closed:
                    break
                process = self._process = self._process or self._start()
                answer, is_late = self._ask(process, request)
                if answer is not None:
                    return _parts_of(answer, request)
                self._end()
                if is_late:
                    raise ModelFileRefused(f"reading this model took longer than {self._seconds:g} s")
                log.warning("model_reader_died")
        if self._is_closed:
            raise TrainingUnavailable("the process that reads models was ended before it had answered")
        raise ModelFileRefused(f"this model ended the process that reads it, {ATTEMPTS} times")

    def start(self) -> None:
        """Start the process, so that the first request does not wait for it; nothing happens where one is there.

        Raises:
            TrainingUnavailable: the process does not start.
        """
        with self._lock:
            if self._process is None and not self._is_closed:
                self._process = self._start()

    @property
    def is_running(self) -> bool:
        """There is a process, and it has not ended."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the process, its request too; idempotent. A later request starts another."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()
            self._is_closed = False

    def _start(self) -> "subprocess.Popen[bytes]":
        kept = {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}
        process = subprocess.Popen(
            (*self._command, *([WITH_SKRUB] if self._has_skrub else [])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | ONE_THREAD,
            cwd=os.path.abspath(os.sep),
        )
        with self._ended_in_time(process):
            hello = _read(process)
        if hello is None:
            _reap(process)
            raise TrainingUnavailable(
                f"the process that reads models does not start; `{' '.join(self._command)}` says why"
            )
        if hello[0].get("open"):
            log.warning("model_reader_confined_in_part", still_open=hello[0]["open"])
        return process

    def _ask(self, process: "subprocess.Popen[bytes]", request: Request) -> tuple[Answer | None, bool]:
        """Return (the answer, None where the process has ended; whether its time was up)."""
        assert process.stdin is not None
        with self._ended_in_time(process) as is_late:
            try:
                request.write(process.stdin)
                answer = _read(process)
            except OSError:
                answer = None
        return answer, is_late.is_set()

    @contextmanager
    def _ended_in_time(self, process: "subprocess.Popen[bytes]") -> Iterator[threading.Event]:
        """Kill the process when the time is up; the event then says so."""
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield is_late
        finally:
            timer.cancel()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _reap(process)


def _parts_of(answer: Answer, request: Request) -> list[bytes]:
    header, parts = answer
    if "refused" in header:
        raise ModelFileRefused(str(header["refused"])[:LONGEST_REASON])
    if len(parts) != 1 + request.again:
        raise ModelFileRefused("the process that read this model gave no predictions")
    return parts


def _read(process: "subprocess.Popen[bytes]") -> Answer | None:
    """Return a frame; None where the process has ended, or speaks as ours never does."""
    assert process.stdout is not None
    try:
        return read_frame(process.stdout, LARGEST_ANSWER)
    except (ValueError, TypeError):
        return None


def _reap(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # What was still to be written to a process that is gone.
                pipe.close()
