"""The option of commands that can serve the web console beside what they run."""

from typing import Annotated

import typer

WithUi = Annotated[bool, typer.Option("--ui", help="Serve the web console beside it, until Ctrl-C.")]
