"""Run `apc` commands, each at its own terminal.

JSON {"imported": modules, "lines": argument lists} on stdin, JSON {line: output} on stdout. Its own program that
imports the console and these modules once and forks for each command. With `--unguarded` text is printed as it
is: that shows what the guard keeps away.
"""

import json
import os
import pty
import select
import sys
from contextlib import suppress
from importlib import import_module

from apc_contracts import text

AT_ONCE = 12
"""Most of them wait for a broker that is away."""
LOOK_AGAIN_SECONDS = 0.05


def main() -> None:
    asked = json.load(sys.stdin)
    lines: list[list[str]] = asked["lines"]
    if "--unguarded" in sys.argv:
        text.printable = str  # type: ignore[assignment]
    from apc_cli import commands as cli

    for module in asked["imported"]:
        import_module(module)
    said: dict[str, str] = {}
    for start in range(0, len(lines), AT_ONCE):
        running = [(line, *_start(cli, line)) for line in lines[start : start + AT_ONCE]]
        said |= {"\0".join(line): _read(*its) for line, *its in running}
    sys.stdout.buffer.write(json.dumps(said).encode())


def _start(cli: object, line: list[str]) -> tuple[int, int, int]:
    """Fork for a command; return it, its terminal, and our hold of the terminal's other end.

    What was written last can be lost when nobody holds that end any more.
    """
    terminal, held = pty.openpty()
    child = os.fork()
    if child == 0:
        os.close(terminal)
        os.login_tty(held)
        try:
            cli.main(line)  # type: ignore[attr-defined]
        finally:
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(0)
    return child, terminal, held


def _read(child: int, terminal: int, held: int) -> str:
    output, has_ended = bytearray(), False
    while True:
        is_there, _, _ = select.select([terminal], [], [], 0 if has_ended else LOOK_AGAIN_SECONDS)
        if is_there:
            output += os.read(terminal, 65536)
        elif has_ended:
            break
        else:
            has_ended = os.waitpid(child, os.WNOHANG)[0] == child
    os.close(terminal)
    os.close(held)
    return output.decode(errors="surrogateescape")


if __name__ == "__main__":
    main()
