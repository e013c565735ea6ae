"""Compare this checkout with another commit: the same benchmark, old and new in turn, on one machine.

`python -m benchmarks.against REF`: the commit gets a checkout and its own environment below .against/.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.support.amounts import at_least
from benchmarks.support.processes import ROOT

FOLDER = ROOT / ".against"
"""Not below build/, which may be private: as root the embedded server runs as another user, who has to read it."""
Measured = Mapping[str, Mapping[str, float | str | None]]


def main() -> int:
    """Run the comparison; 0 whatever it shows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--runs", type=at_least(1), default=5, help="runs of each (default 5)")
    parser.add_argument("--only", default="pipeline", help="the part of the benchmarks (default pipeline)")
    parser.add_argument("--packets", type=at_least(1_000), default=10_000, help="of a throughput run (default 10,000)")
    arguments = parser.parse_args()
    try:
        old = checkout(arguments.ref)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip() or str(error)
        print(f"benchmarks.against: {arguments.ref} cannot be checked out: {reason}", file=sys.stderr)
        return 2
    measured: dict[str, list[Measured]] = {"old": [], "new": []}
    for run in range(arguments.runs):
        for name, folder in (("old", old), ("new", ROOT)):
            print(f"run {run + 1} of {arguments.runs}: {name}", flush=True)
            try:
                measured[name].append(measure(folder, arguments.only, arguments.packets))
            except subprocess.CalledProcessError as error:
                print(f"benchmarks.against: the benchmark failed in {folder}: {error}", file=sys.stderr)
                return 1
    Console(width=120).print(compare(arguments.ref, measured["old"], measured["new"]))
    return 0


def checkout(ref: str) -> Path:
    """Return a checkout of `ref` with its own environment; it is made once. Raises CalledProcessError."""
    commit = _output(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"]).strip()
    folder = FOLDER / commit[:12]
    if not (folder / ".venv" / ".installed").exists():
        if not folder.exists():
            _output(["git", "worktree", "add", "--detach", str(folder), commit])
        subprocess.run(["make", f"PY={sys.executable}", "setup"], cwd=folder, check=True)
    return folder


def measure(folder: Path, part: str, packets: int) -> Measured:
    """Run one part of the benchmarks in a checkout and return its figures. Raises CalledProcessError."""
    out = folder / "build" / "against.json"
    command = [str(folder / ".venv/bin/python"), "-m", "benchmarks", "--only", part]
    subprocess.run([*command, "--packets", str(packets), "--out", str(out)], cwd=folder, check=True)
    found: Measured = orjson.loads(out.read_bytes())
    return found


def compare(ref: str, old: Sequence[Measured], new: Sequence[Measured]) -> Table:
    """Return a table of medians; `ratio` is new / old of the medians."""
    table = Table("figure", "unit", ref, "this checkout", "ratio", title=f"medians of {len(new)} alternating runs")
    for name, figure in new[0].items():
        before = [_value(run[name]) for run in old if name in run]
        after = [_value(run[name]) for run in new if name in run]
        if before and after:
            first, second = median(before), median(after)
            ratio = f"{second / first:.2f}" if first else ""
            table.add_row(name, str(figure["unit"]), f"{first:,.3g}", f"{second:,.3g}", ratio)
    return table


def _value(figure: Mapping[str, float | str | None]) -> float:
    value = figure["value"]
    assert isinstance(value, float | int)
    return float(value)


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
