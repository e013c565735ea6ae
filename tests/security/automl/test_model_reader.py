"""What a model could do to the process that reads it stays there: no files, no network, no secrets, no end of time."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from apc_automl.errors import ModelFileRefused, TrainingUnavailable
from apc_automl.model import model_reader
from apc_automl.model.model_reader import LARGEST_ANSWER, ModelReader, Request, read_frame

REQUEST = Request(b"model", b"{}", b"", again=False)

PROBE = """
import json, os, socket, subprocess, sys
if sys.argv[1] == "confined":
    from apc_agents.confinement import ProcessLimits, confine
    still_open = confine(ProcessLimits(2**30), [*sys.path])
else:
    still_open = ()

def tried(act):
    try:
        act()
    except (OSError, MemoryError) as error:
        return type(error).__name__
    return "done"

folder = sys.argv[2]
acts = {
    "files": [
        lambda: open(folder + "/made", "w"),
        lambda: open(folder + "/old", "a"),
        lambda: open(folder + "/old").read(),
        lambda: os.rename(folder + "/old", folder + "/new"),
        lambda: os.rename(folder + "/new", folder + "/old"),
        lambda: open("/proc/%d/environ" % os.getppid()).read(),
    ],
    "network": [lambda: socket.socket().close(), lambda: socket.socket(socket.AF_UNIX).close()],
    "processes": [lambda: subprocess.run(["/bin/true"]), lambda: os.kill(os.getppid(), 0)],
    "memory": [lambda: bytearray(3 * 2**29)],
}
print(json.dumps({"open": still_open, "acts": {name: [tried(act) for act in ones] for name, ones in acts.items()}}))
"""
STUB = 'import sys; sys.stdout.write(\'{"open": [], "sizes": []}\\n\'); sys.stdout.flush(); sys.stdin.readline(); '


def probe(how: str, folder: Path) -> dict[str, dict[str, list[str]]]:
    (folder / "old").write_text("secret")
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROBE, how, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process confine itself")
def test_a_confined_process_can_do_nothing_of_what_an_open_one_can(tmp_path: Path) -> None:
    assert {result for results in probe("open", tmp_path)["acts"].values() for result in results} == {"done"}
    (tmp_path / "made").unlink()
    found = probe("confined", tmp_path)
    for name, results in found["acts"].items():
        assert name in found["open"] or "done" not in results, (name, results)
    assert "files" in found["open"] or not (tmp_path / "made").exists()


def stub(rest: str, seconds: float = 60) -> ModelReader:
    return ModelReader((sys.executable, "-I", "-c", STUB + rest), seconds)


def names_in_the_environment() -> str:
    """Return what a model can read of the environment."""
    reader = stub(
        "import os, json; print(json.dumps({'refused': ' '.join(sorted(os.environ)), 'sizes': []}), flush=True)"
    )
    with pytest.raises(ModelFileRefused) as refused:
        reader.predict(REQUEST)
    reader.close()
    return str(refused.value)


def test_secrets_of_the_environment_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", "postgres://apc:secret@localhost")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    with monkeypatch.context() as unguarded:
        unguarded.setattr(model_reader, "ENVIRONMENT", ("APC_", "OPENBLAS_"))
        assert "APC_DATABASE_URL" in names_in_the_environment(), "without the list the secret is there to be read"
    names = names_in_the_environment()
    assert "OPENBLAS_CORETYPE" in names
    assert "APC_DATABASE_URL" not in names


def test_a_model_that_ends_the_process_is_refused() -> None:
    assert subprocess.run((sys.executable, "-c", "import os; os.abort()")).returncode < 0, (
        "it would end anyone who reads"
    )
    reader = stub("import os; os.abort()")
    with pytest.raises(ModelFileRefused, match="ended the process"):
        reader.predict(REQUEST)
    reader.close()


def test_a_model_that_never_ends_is_refused() -> None:
    endless = "import threading; threading.Event().wait()"
    ended: list[Exception] = []

    def wait_without_the_guard() -> None:
        try:
            unguarded.predict(REQUEST)
        except TrainingUnavailable as error:
            ended.append(error)

    unguarded, reader = stub(endless, seconds=threading.TIMEOUT_MAX), stub(endless, seconds=3)
    waiting = threading.Thread(target=wait_without_the_guard)
    waiting.start()
    with pytest.raises(ModelFileRefused, match="longer than 3 s"):
        reader.predict(REQUEST)
    reader.close()
    assert waiting.is_alive() and not ended, "without the limit the other still waits"
    while not unguarded.is_running and waiting.is_alive():
        waiting.join(0.01)
    unguarded.close()
    waiting.join(60)
    assert len(ended) == 1, "it is ended from outside only"


@pytest.mark.parametrize(
    "answer",
    [
        "'{\"sizes\": [99999999999]}'",
        "'[]'",
        "'no json'",
        "'{\"sizes\": [-1]}'",
        "'x' * 100_000",
    ],
)
def test_an_answer_that_no_reader_gives_is_a_refusal(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = f"print({answer}, flush=True); sys.stdin.read()"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(model_reader, "_read", lambda process: read_frame(process.stdout, LARGEST_ANSWER))
        reader = stub(odd)
        with pytest.raises((ValueError, TypeError)):  # it ends the handler as if the fault were ours
            reader.predict(REQUEST)
        reader.close()
    reader = stub(odd)
    with pytest.raises(ModelFileRefused):
        reader.predict(REQUEST)
    reader.close()


def test_an_answer_too_large_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 20
    large = f"""print('{{"sizes": [{size}]}}'); sys.stdout.write('x' * {size}); sys.stdout.flush(); sys.stdin.read()"""
    reader = stub(large)
    assert reader.predict(REQUEST) == [b"x" * size], "within the bound it is taken into memory"
    reader.close()
    monkeypatch.setattr(model_reader, "LARGEST_ANSWER", size - 1)
    reader = stub(large)
    with pytest.raises(ModelFileRefused, match="ended the process"):
        reader.predict(REQUEST)
    reader.close()


def test_a_process_that_does_not_start_is_no_fault_of_the_model() -> None:
    reader = ModelReader((sys.executable, "-I", "-c", "raise SystemExit(1)"))
    with pytest.raises(TrainingUnavailable, match="does not start"):
        reader.predict(REQUEST)
    reader.close()


def test_the_process_that_reads_models_refuses_and_goes_on() -> None:
    reader = ModelReader()
    for bytes_ in (b"no model", b"\x80\x05."):
        with pytest.raises(ModelFileRefused):
            reader.predict(Request(bytes_, b'{"target": "x"}', b"", again=False))
    assert reader.is_running
    reader.close()
    assert not reader.is_running
