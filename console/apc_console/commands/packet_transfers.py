"""`apc packet transfer-arbitrate`: judge and rank the TRANSFERs of a file, without any server.

Source: docs/specification/contract.md section 14.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from apc_console.commands.group import ContractFile
from apc_console.errors import InputUnusable
from apc_console.output.files import read_bytes, write_output
from apc_console.output.output import AsJson, print_rows, to_json
from apc_console.output.terminal import echo
from apc_contracts.contract.contract import load_contract
from apc_contracts.protocol.transfer_arbitration import TransferArbitration, TransferRow, arbitrate_offline

ACCEPTED_FORMS = "a list of packets, {packets: […]}, JSON lines or YAML"


def transfer_arbitrate(
    packets_in: Annotated[Path, typer.Option(help="A list, {packets: […]}, JSON lines or YAML; - reads the input.")],
    top_k: Annotated[int, typer.Option(min=0, help="Select at most this many packets, over the whole file.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Write JSON to this file; - is standard output.")] = None,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge and rank TRANSFERs as a barrier would, without any server: selected, not selected, rejected."""
    arbitration = arbitrate_offline(read_packets(packets_in), load_contract(contract_file), top_k)
    document = arbitration.document
    if out is not None:
        write_output(out, to_json(document) + b"\n")
        if str(out) != "-":
            echo(f"{out}: {len(arbitration.selected)} of {document['input_count']} selected", file=sys.stderr)
    else:
        rows = _table(arbitration)
        print_rows(rows, title="Transfer arbitration", as_json=as_json, empty="no packets", document=document)


def read_packets(path: Path) -> list[bytes]:
    """Return the items of a file, each as JSON bytes; whether they are packets is not checked here.

    Raises:
        InputUnusable: the file cannot be read, or is in none of the accepted forms.
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputUnusable(f"{path} is not UTF-8: byte {error.start} cannot be read") from error
    if not text.strip():
        raise InputUnusable(f"{path} is empty: give {ACCEPTED_FORMS}")
    lines = _json_lines(text)
    if lines is not None:
        return lines
    return [_body(item) for item in _items(_document(text, path), path)]


def _json_lines(text: str) -> list[bytes] | None:
    """Return one packet per line, unchanged.

    None when the first line is not a JSON object, or is part of a longer one.
    """
    # Not splitlines: a JSON string may contain other line separators.
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        first = json.loads(lines[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(first, dict) or "packets" in first:
        return None
    if len(lines) == 1 and "packet_type" not in first and "packet_id" not in first:
        return None
    return [line.strip().encode() for line in lines]


def _document(text: str, path: Path) -> Any:
    """Return the file as one JSON value, or else as YAML."""
    try:
        return json.loads(text, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[0] in "[{":
            raise InputUnusable(f"{path} cannot be read as JSON: {error}; give {ACCEPTED_FORMS}") from error
        return _yaml(text, path)


def _yaml(text: str, path: Path) -> Any:
    class PlainLoader(yaml.SafeLoader):
        """A YAML loader that leaves times as text, as in JSON."""

    PlainLoader.yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        loader = PlainLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputUnusable(f"{path} is neither JSON nor YAML: {error}; give {ACCEPTED_FORMS}") from error


def _items(document: Any, path: Path) -> list[Any]:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        raise InputUnusable(f"{path} holds {_kind(document)}: give {ACCEPTED_FORMS}")
    if "packet_type" in document or "packet_id" in document:
        return [document]
    unknown = sorted(str(key) for key in document if key != "packets")
    if "packets" not in document or unknown:
        named = ", ".join(unknown) or "nothing"
        raise InputUnusable(f"{path} is an object with {named}: the packets belong under the one key `packets`")
    packets = document["packets"]
    if not isinstance(packets, list):
        raise InputUnusable(f"{path}: packets is {_kind(packets)}, not a list: give packets: [ … ]")
    return packets


def _body(item: Any) -> bytes:
    """Return an item as the bytes that `parse_packet` takes, which judges them."""
    try:
        return json.dumps(item, default=str).encode()
    except (TypeError, ValueError, RecursionError):
        return str(item).encode(errors="replace")  # keys that JSON does not have, a value inside itself: not a packet


def _refuse_twice(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return found


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "an object"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case _:
            return "text" if isinstance(value, str) else f"a {type(value).__name__}"


def _table(arbitration: TransferArbitration) -> list[dict[str, Any]]:
    groups: tuple[tuple[str, Sequence[TransferRow]], ...] = (
        ("selected", arbitration.selected),
        ("not selected", arbitration.not_selected),
        ("rejected", arbitration.rejected),
    )
    return [{"outcome": name, **row.document, "reason": row.reason} for name, rows in groups for row in rows]
