"""`.ci/broker`, which `make test` runs first: what it does on machines of other kinds, by a PATH of stand-ins."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/broker"
Machine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Run the script where only the named programs are, each doing what its line of shell says; `calls` holds them."""
    calls = tmp_path / "calls"
    calls.touch()

    def run(given: dict[str, str] | None = None, **programs: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, does in {
            "uname": "echo Linux",
            "id": "echo 1000",
            "tee": "cat",
            "chmod": ":",
            "rm": ":",
            "true": ":",
        }.items():
            programs.setdefault(name, does)
        for name, does in programs.items():
            file = folder / name.replace("_", "-")
            file.write_text(f'#!/bin/sh\n[ "${{0##*/}}" = cat ] || echo "${{0##*/}} $*" >>{calls}\n{does}\n')
            file.chmod(0o755)
        for real in ("sh", "cat", "env"):
            (folder / real).symlink_to(f"/bin/{real}" if real != "env" else "/usr/bin/env")
        environment = {"PATH": str(folder)} | (given or {})
        done = subprocess.run(["/bin/sh", SCRIPT], env=environment, capture_output=True, text=True, timeout=30)
        return subprocess.CompletedProcess(done.args, done.returncode, calls.read_text(), done.stdout + done.stderr)

    return run


@pytest.mark.parametrize(
    ("given", "programs"),
    [
        ({"APC_AMQP_URL": "amqp://broker/"}, {}),
        ({}, {"rabbitmq_server": ":"}),
        ({}, {"docker": ":"}),
    ],
    ids=["a given broker", "an installed one", "Docker"],
)
def test_what_is_there_is_used(machine: Machine, given: dict[str, str], programs: dict[str, str]) -> None:
    done = machine(given, apt_get=":", **programs)

    assert (done.returncode, done.stderr) == (0, "")
    assert "apt-get" not in done.stdout


@pytest.mark.parametrize(
    "programs", [{"id": "echo 0"}, {"sudo": 'shift; exec "$@"'}], ids=["root", "sudo without a password"]
)
def test_it_installs_where_it_may_and_says_so(machine: Machine, programs: dict[str, str]) -> None:
    done = machine(apt_get=":", docker="exit 1", **programs)

    assert done.returncode == 0, done.stderr
    assert "the tests need RabbitMQ: installing Debian's package rabbitmq-server" in done.stderr
    assert "apt-get update -q\n" in done.stdout
    assert "apt-get install -q -y --no-install-recommends rabbitmq-server\n" in done.stdout


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"apt_get": ":"}, "run `sudo apt-get install --no-install-recommends rabbitmq-server`"),
        ({"apt_get": ":", "sudo": "exit 1"}, "run `sudo apt-get install --no-install-recommends rabbitmq-server`"),
        ({}, "install the package rabbitmq-server"),
        ({"uname": "echo Darwin", "brew": "echo /brew"}, "run `brew install rabbitmq` and put /brew/sbin on the PATH"),
        ({"uname": "echo Darwin"}, "run `brew install rabbitmq` and put /opt/homebrew/sbin on the PATH"),
    ],
    ids=["no sudo", "sudo asks for a password", "no apt", "macOS", "macOS without brew"],
)
def test_where_it_may_not_it_says_what_to_do(machine: Machine, programs: dict[str, str], said: str) -> None:
    done = machine(**programs)

    assert done.returncode == 1
    assert f"the tests need RabbitMQ: {said}, start Docker, or set APC_AMQP_URL" in done.stderr
    assert "install -q" not in done.stdout
