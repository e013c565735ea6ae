"""One broker node for several processes: its owner starts it beside them, and stops it at the end."""

import json
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.support.servers.node_control import PATIENCE_SECONDS, NodeControl
from tests.support.servers.private_node import PrivateNode
from tests.support.servers.rabbit import RabbitServer

from apc_bus.errors import BusUnavailable

_LOOK_SECONDS = 0.1
_PLACE, _FAILED = "place.json", "failed"


class SharedNode:
    """The owner's side: it starts the node in a thread. Others reach it through `folder`, see `reach_shared_node`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="apc-shared-node-"))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="shared-node", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the node and delete the folder."""
        self._ended.set()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self) -> None:
        try:
            node = PrivateNode()
        except BusUnavailable as error:
            _write(self.folder / _FAILED, str(error))
            return
        try:
            node.start()
            _write(self.folder / _PLACE, json.dumps({"url": node.url(), "control": asdict(node.control)}))
            self._ended.wait()
        except BusUnavailable as error:
            _write(self.folder / _FAILED, str(error))
        finally:
            node.close()


def reach_shared_node(folder: Path) -> RabbitServer:
    """Return the broker of the owner of this folder, as soon as it is there.

    Raises:
        BusUnavailable: it does not start.
    """
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while not (folder / _PLACE).exists():
        if (folder / _FAILED).exists():
            raise BusUnavailable((folder / _FAILED).read_text())
        if time.monotonic() > deadline:
            raise BusUnavailable(f"the shared RabbitMQ node did not start in {2 * PATIENCE_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)
    place = json.loads((folder / _PLACE).read_text())
    control = NodeControl(**place["control"])
    return RabbitServer("node of the whole run", place["url"], control.change_vhosts, control.ctl, ExitStack())


def _write(file: Path, text: str) -> None:
    """So that nobody reads half of it."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.rename(file)
