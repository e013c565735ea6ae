"""Builds the release in build/release: wheel and sdist, built twice and compared, and the licences of what they need.

`make release` runs it. The same commit gives the same bytes, on the same interpreter and hatchling.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.licences import read_licences, unknown_licences

ROOT = Path(__file__).parents[2]
STATIC = "web/apc_web/static"
OPENAPI = "web/apc_web/openapi.json"
"""The built page of the web console, and the document of its API; git holds neither."""
TARGET = ROOT / "build/release"


def build(commit: str, target: Path) -> dict[str, str]:
    """Build wheel and sdist of a commit into an empty folder; return the SHA-256 of each file.

    The sources are those of git and the built page: nothing else that lies about in the checkout gets into a release.

    Raises:
        subprocess.CalledProcessError: git or the build failed; its words are on standard error.
    """
    stamp = subprocess.run(
        ["git", "log", "-1", "--format=%ct", commit], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="apc-release-") as folder:
        archive, source = Path(folder) / "source.tar", Path(folder) / "source"
        subprocess.run(["git", "archive", f"--output={archive}", commit], cwd=ROOT, check=True)
        with tarfile.open(archive) as opened:
            opened.extractall(source, filter="data")
        shutil.copytree(ROOT / STATIC, source / STATIC)
        shutil.copy(ROOT / OPENAPI, source / OPENAPI)
        environment = os.environ | {"SOURCE_DATE_EPOCH": stamp}
        command = [sys.executable, "-m", "build", "--outdir", str(target), str(source)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.iterdir())}


def _changed(folder: str) -> str:
    command = ["git", "status", "--porcelain", "--", folder]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Build and compare; exit 1 with a line when the two differ or a licence is not in the list."""
    if not (ROOT / STATIC / "index.html").exists():
        sys.exit("the page of the web console is not built: run `make release`, which builds it first")
    if changed := _changed("web"):
        sys.exit(f"the page may be built from what is not committed: commit or undo {changed}")
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="apc-release-again-") as again:
        first, second = build("HEAD", TARGET), build("HEAD", Path(again))
    if first != second:
        sys.exit(f"two builds of the same commit differ: {first} and {second}")
    licences = read_licences()
    if unknown := unknown_licences(licences):
        sys.exit(f"licences that tests/support/licences.py does not allow: {unknown}")
    lines = (f"{one.name} {one.version}\t{one.licence}\n" for one in licences)
    (TARGET / "LICENCES.txt").write_text("".join(lines), encoding="utf-8")
    (TARGET / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in first.items()))
    for name, digest in first.items():
        print(f"{digest}  {name}")
    print(f"built twice, identical; {len(licences)} dependencies, all licences allowed")


if __name__ == "__main__":
    main()
