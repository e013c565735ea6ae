"""Run a wheel where there is no Node and no checkout: `python -m tests.support.web.wheel_page WHEEL`.

The environment is new and has the wheel alone; its dependencies are those of this interpreter, so that nothing is
downloaded. `apc demo` runs to its end, and `apc up` and `apc ui` serve the page, with no other program on their PATH.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

PATIENCE_SECONDS = 60.0
_LINK = re.compile(r"http://[^\"]+#token=[^\"]+")


def make_environment(folder: Path, wheel: Path) -> Path:
    """Return the programs of a new environment with the wheel, beside the packages of this interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([str(programs / "python"), *install], check=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (own / "beside.pth").write_text(sysconfig.get_path("purelib"))  # read last, so that the wheel comes first
    return programs


@contextmanager
def running(programs: Path, folder: Path, arguments: list[str], sign: str) -> Iterator[str]:
    """Run `apc`, and yield the line of its output that holds the sign; end it afterwards."""
    environment = {"PATH": str(programs), "HOME": str(folder), "APC_DATA_DIR": str(folder / "data")}
    command = [str(programs / "apc"), *arguments]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if sign in line:
                break
        else:
            raise SystemExit(f"apc {' '.join(arguments)} ended:\n{''.join(said)}")
        yield said[-1]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def play_demo(programs: Path, folder: Path) -> None:
    """Run `apc demo` to its end. Raises SystemExit when it does not show what it should."""
    environment = {"PATH": str(programs), "HOME": str(folder), "APC_DATA_DIR": str(folder / "demo")}
    ended = subprocess.run(
        [str(programs / "apc"), "demo"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode or "has 1 line: rollback shop" not in ended.stdout:
        raise SystemExit(f"apc demo ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def fetch(address: str, token: str | None = None) -> str:
    """Return what is at an address. Raises OSError for a status that is none of success."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urlopen(Request(address, headers=headers), timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def check_page(link: str) -> None:
    """Fetch the page, a script that it names, and what the API says of itself."""
    address, _, token = link.partition("#token=")
    page = fetch(address)
    script = re.search(r'src="/(assets/[^"]+\.js)"', page)
    if script is None or '<div id="root">' not in page:
        raise SystemExit(f"this is no page of the web console:\n{page}")
    if len(fetch(address + script[1])) < 10_000:
        raise SystemExit(f"{script[1]} is no script")
    about = json.loads(fetch(f"{address}api/v1/about", token))
    if about["database"] != "embedded":
        raise SystemExit(f"another server answers: {about}")


def main() -> None:
    """Fail unless the page of a wheel is served."""
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="apc-wheel-") as name:
        folder = Path(name)
        programs = make_environment(folder / "environment", wheel)
        for node in ("node", "npm"):
            assert shutil.which(node, path=str(programs)) is None
        play_demo(programs, folder)
        (folder / "data").mkdir(mode=0o700)
        with (
            running(programs, folder, ["up"], "apc up: ready"),
            running(programs, folder, ["ui", "--no-browser", "--listen", f"127.0.0.1:{free_port()}"], " in a browser"),
        ):
            (link,) = (_LINK.search(file.read_text()) for file in (folder / "data").glob("ui-*.html"))
            assert link is not None
            check_page(link[0])
    print("wheel: `apc demo` runs, and `apc ui` serves the page without Node")


if __name__ == "__main__":
    main()
