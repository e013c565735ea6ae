"""Runs the bus's contract suite against the lowest and the newest versions that pyproject.toml allows.

`make test-dependencies`; each in a fresh environment below build/. The bus subclasses aio-pika and aiormq and reads
pamqp's frames, so that the bounds are promises, and these are their test.
"""

import argparse
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "dependencies"
SUITE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/bus/port").glob("test_port_*.py"))
RUNNERS = frozenset({"hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"})
"""What the suite itself needs of the extra `dev`."""
NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:anyio")
"""The tests use neither, and that of anyio warns under the newest pytest."""
EXTRA = "faststream"
"""Of its library the bus uses more than it promises, too."""
CHOICES = ("lowest", "newest")


def requirements(extra: str | None = None) -> list[Requirement]:
    """The declared dependencies of the product, or those of an extra, as far as they are for this interpreter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    found = [Requirement(text) for text in declared]
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def lowest(requirement: Requirement) -> Version:
    """Return the lowest version that a requirement allows. Raises ValueError when it names none."""
    bounds = [Version(one.version) for one in requirement.specifier if one.operator in (">=", "==", "~=")]
    if not bounds:
        raise ValueError(f"pyproject.toml: {requirement} has no lower bound")
    return max(bounds)


def constraints(choice: str, declared: Iterable[Requirement]) -> list[str]:
    """Return the lines of a constraints file; the newest versions need none beyond pyproject.toml."""
    return [f"{one.name}=={lowest(one)}" for one in declared] if choice == "lowest" else []


def run_suite(choice: str) -> int:
    """Install and run; the exit code of pytest. Raises CalledProcessError when the versions cannot be installed."""
    folder = BUILD / choice
    venv.create(folder, with_pip=True, clear=True)
    python = str(folder / "bin" / "python")
    file = folder / "constraints.txt"
    declared = [*requirements(), *requirements(EXTRA)]
    file.write_text("\n".join([*constraints(choice, declared), ""]))
    runners = [str(one) for one in requirements("dev") if one.name in RUNNERS]
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    wanted = ["--constraint", str(file), "--editable", f"{ROOT}[{EXTRA}]", *runners]
    subprocess.run([*pip, "--quiet", "install", *wanted], check=True, cwd=ROOT)
    _print_versions(choice, subprocess.check_output([*pip, "list", "--format=freeze"], text=True), declared)
    return subprocess.run([python, "-m", "pytest", "-q", *NO_PLUGINS, *SUITE], cwd=ROOT).returncode


def _print_versions(choice: str, installed: str, declared: Iterable[Requirement]) -> None:
    names = {canonicalize_name(one.name) for one in declared}
    versions = [line for line in installed.splitlines() if canonicalize_name(line.partition("==")[0]) in names]
    print(f"{choice}: {', '.join(versions)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite against both, or the one that is named; 0 when all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("choices", nargs="*", choices=(*CHOICES, []), help="default: both")
    codes = [run_suite(choice) for choice in parser.parse_args(arguments).choices or CHOICES]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
