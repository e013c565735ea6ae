"""The process that loads models of others: `python -I -m apc_automl.model.reader_process`, started by `ModelReader`.

It answers requests on its standard input, one after the other, until that ends. Before the first one it gives up
files, network, other processes, and memory without end; what a model could do to it stays in it.
"""

import signal
import sys
import sysconfig
from functools import lru_cache
from typing import IO

import pandas as pd
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from apc_agents.confinement import ProcessLimits, confine
from apc_automl.data.table import decode_rows
from apc_automl.data.table_schema import Schema
from apc_automl.errors import ModelFileRefused
from apc_automl.model.model_file import dump_model, load_model, predict, write_predictions
from apc_automl.model.model_reader import LARGEST_REQUEST, Request, read_frame, write_frame
from apc_automl.model.model_types import WITH_SKRUB, load_skrub

MEMORY_BYTES = 4 * 2**30
CPU_SECONDS = 120
"""For one request."""


def main() -> None:
    """Answer until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with threadpool_limits(1):
        find_thread_pools()
        if WITH_SKRUB in sys.argv[1:]:
            load_skrub()
        open_ways = confine(ProcessLimits(MEMORY_BYTES), [*sys.path, *_library_folders()])
        write_frame(sys.stdout.buffer, {"open": list(open_ways)})
        while answer_one(sys.stdin.buffer, sys.stdout.buffer):
            pass


def find_thread_pools() -> None:
    """Let scikit-learn find its thread pools while this process may still read files.

    Its first computation of neighbours by brute force (tables of more than fifteen columns) reads `/proc/self/maps`
    and keeps what it found.
    """
    KNeighborsClassifier(n_neighbors=1, algorithm="brute").fit([[0.0], [1.0]], [0, 1]).predict([[0.0]])


def answer_one(source: IO[bytes], target: IO[bytes]) -> bool:
    """Read one request and answer it; False when there is none."""
    frame = read_frame(source, LARGEST_REQUEST)
    if frame is None:
        return False
    _bound_time()
    header, parts = frame
    try:
        write_frame(target, {}, *_predictions(Request.of(header, parts)))
    except ModelFileRefused as error:
        write_frame(target, {"refused": str(error)})
    except Exception as error:
        # A file of trusted types can hold anything in its numbers, and scikit-learn says so in many ways.
        write_frame(target, {"refused": f"this model cannot predict: {error}"})
    return True


def _predictions(request: Request) -> list[bytes]:
    schema, features = _decoded(request.schema, request.rows)
    model = load_model(request.model)
    models = [model, load_model(dump_model(model))] if request.again else [model]
    return [write_predictions(predict(one, schema, features)) for one in models]


@lru_cache(maxsize=4)
def _decoded(schema: bytes, rows: bytes) -> tuple[Schema, pd.DataFrame]:
    known = Schema.model_validate_json(schema)
    return known, decode_rows(rows, known)[0]


def _bound_time() -> None:
    if sys.platform == "linux":
        from apc_agents.confinement import allow_cpu_seconds

        allow_cpu_seconds(CPU_SECONDS)


def _library_folders() -> list[str]:
    return [sysconfig.get_path("stdlib"), "/lib", "/lib64", "/usr/lib", "/usr/lib64"]


if __name__ == "__main__":
    main()
