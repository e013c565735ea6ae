"""What a model could do to the process that reads it stays there: no files, no network, no secrets, no end of time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from apc_automl.errors import ModelRefused, TrainingUnavailable
from apc_automl.model.frames import Request
from apc_automl.model.model_reader import ModelReader

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


def test_secrets_of_the_environment_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", "postgres://apc:secret@localhost")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    names = "import os, json; print(json.dumps({'refused': ' '.join(sorted(os.environ)), 'sizes': []}), flush=True)"
    reader = stub(names)
    with pytest.raises(ModelRefused) as refused:
        reader.predict(REQUEST)
    reader.close()
    assert "OPENBLAS_CORETYPE" in str(refused.value)
    assert "APC_DATABASE_URL" not in str(refused.value)
    assert "APC_DATABASE_URL" in os.environ


def test_a_model_that_ends_the_process_is_refused() -> None:
    reader = stub("import os; os.abort()")
    with pytest.raises(ModelRefused, match="ended the process"):
        reader.predict(REQUEST)
    reader.close()


def test_a_model_that_takes_for_ever_is_refused() -> None:
    reader = stub("import threading; threading.Event().wait()", seconds=3)
    with pytest.raises(ModelRefused, match="longer than 3 s"):
        reader.predict(REQUEST)
    reader.close()


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
def test_an_answer_that_no_reader_gives_is_a_refusal(answer: str) -> None:
    reader = stub(f"print({answer}, flush=True); sys.stdin.read()")
    with pytest.raises(ModelRefused):
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
        with pytest.raises(ModelRefused):
            reader.predict(Request(bytes_, b'{"target": "x"}', b"", again=False))
    assert reader.is_running
    reader.close()
    assert not reader.is_running
