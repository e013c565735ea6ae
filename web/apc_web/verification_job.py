"""The verification of the log as a job: one at a time, in a separate process, with progress."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from apc_bus.settings import LogKeySettings
from apc_bus.telemetry import get_logger
from apc_persister.errors import LogKeyMissing, LogKeyUnusable, PreviousKeyUnusable
from apc_persister.evidence.checkpoint import load_signer
from apc_web.errors import ApiError
from apc_web.models import LogVerification, VerificationFinding

NO_KEY = (
    "this server has no key of the log to check its checkpoints with: run `apc log verify` where the key is, "
    "or start the server with APC_LOG_KEY_FILE"
)

BAD_KEY = "the key of the log on this server cannot be used: the message of `apc log verify` there says why"


def why_no_key() -> str | None:
    """Return why this server cannot verify, one sentence; None when it has the key."""
    try:
        load_signer(LogKeySettings())
    except LogKeyMissing:  # its own remedy, a new key, would make every checkpoint wrong
        return NO_KEY
    except (LogKeyUnusable, PreviousKeyUnusable):  # their words name files
        return BAD_KEY
    return None


MOST_FINDINGS = 100
"""That are listed; what is more is counted."""
_END = timedelta(seconds=5)
"""From SIGTERM to SIGKILL."""
LONGEST_MESSAGE = 1_000
"""Characters of a finding's message: it may quote what somebody wrote into the database."""
LONGEST_PLACE = 300
"""Characters of its place."""
_LINE_LIMIT = 1 << 20
"""Bytes of one line of the process: the most findings, each as long as it can be."""
_log = get_logger("apc_web")


class LogVerifier:
    """Starts the process, reads its progress, and keeps the result of the last one.

    Args:
        url: of the log's database; it is handed over by standard input, so that no process list shows it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._job = LogVerification(state="none")
        self._is_cancelled = False
        self._turn = asyncio.Lock()  # a verification that still starts cannot be ended yet

    @property
    def job(self) -> LogVerification:
        """Return the job as it stands, and why none can start, if so."""
        return self._job.model_copy(update={"why_not": why_no_key()})

    async def start(self, by: str) -> LogVerification:
        """Start a verification. Raises ApiError (409) while one runs, and without the log's key."""
        async with self._turn:
            return await self._start(by)

    async def cancel(self) -> LogVerification:
        """End the verification that runs; without one nothing happens."""
        async with self._turn:
            return await self._cancel()

    async def _start(self, by: str) -> LogVerification:
        if self._job.state == "running":
            raise ApiError(409, "ALREADY_RUNS", "a verification runs: wait for it, or cancel it")
        if (problem := why_no_key()) is not None:
            raise ApiError(409, "NO_LOG_KEY", problem)
        self._job = LogVerification(state="running", by=by, started_at=datetime.now(UTC))
        self._is_cancelled = False
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "apc_web.verification_process",
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_LINE_LIMIT,
            )
        except OSError as error:
            self._finish("failed", words=f"the verification could not start: {error.strerror}")
            return self._job
        self._process = process
        self._reading = asyncio.create_task(self._follow(process))
        return self._job

    async def _cancel(self) -> LogVerification:
        process, reading = self._process, self._reading
        if self._job.state == "running" and process is not None and reading is not None:
            self._is_cancelled = True
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(asyncio.shield(reading), _END.total_seconds())
            except TimeoutError:
                process.kill()
                await reading
        return self._job

    async def _follow(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(self._url.encode() + b"\n")  # it stays open: its end tells the process to end
            await process.stdin.drain()
        try:
            while line := await process.stdout.readline():
                self._take(orjson.loads(line))
        except ValueError:  # a line too long or no JSON
            process.kill()
        await process.wait()
        process.stdin.close()
        if self._job.state == "running":
            state = "cancelled" if self._is_cancelled else "failed"
            self._finish(state, words=None if self._is_cancelled else "the process of the verification ended")

    def _take(self, report: dict[str, Any]) -> None:
        if "words" in report:
            _log.error("web_request_failed", path="log/verify", error=report.get("reason", report["words"]))
            self._finish("failed", words=report["words"])
        elif "findings" in report:
            findings = [VerificationFinding(**one) for one in report["findings"]]
            self._set(findings=findings, unlisted=report["unlisted"])
            self._finish("done", is_whole=not findings)
        else:
            self._set(entries=report["entries"], total=report["total"])

    def _finish(self, state: str, *, words: str | None = None, is_whole: bool | None = None) -> None:
        self._set(state=state, words=words, is_whole=is_whole, ended_at=datetime.now(UTC))

    def _set(self, **values: Any) -> None:
        self._job = self._job.model_copy(update=values)


def verifier_of(verifier: LogVerifier | None) -> LogVerifier:
    """Return the verifier of a server. Raises ApiError (409) when it has none."""
    if verifier is None:
        raise ApiError(409, "NO_VERIFIER", "this server cannot verify: run `apc log verify`")
    return verifier
