"""The model of a run as files: `model.skops` with `model.json`, or `candidate.*` when the gate refused it."""

import asyncio
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from apc_automl.model.model_types import BEYOND_SKOPS
from apc_automl.report.outcome import Judged
from apc_automl.report.run_log import LoggedPacket, RunLog
from apc_bus.artifacts import ArtifactStore
from apc_contracts.contract.contract import load_contract

FORMAT = "apc-automl-model/1"
LIBRARIES = ("scikit-learn", "numpy", "scipy", "pandas", "skrub", "skops", "apc-bus")
MEANINGS = {
    "outcome": "share of the trivial baseline's loss that the model removes, on untouched rows",
    "rtf": "share of rows with the same prediction after saving and loading",
    "audit": "share of hashes that verify",
    "stability": "agreement of the folds of the cross-validation",
    "learnability": "what the model keeps of its outcome as training data grow",
    "generalization_ratio": "outcome on untouched rows, relative to the cross-validation",
    "drift_risk": "how far untouched rows and the errors on them lie from the known ones; chance reaches 0.3",
}

JsonObject = dict[str, Any]


def failures_of(gates: Mapping[str, Any], failed: Sequence[str]) -> tuple[str, ...]:
    """Return each failed gate in words: its figure, the bar, what it means."""
    bars = {name: guard.text.split()[1:] for name, guard in load_contract().promotion_gate.criteria}
    limits = {">=": "at least", "<=": "at most", "==": "exactly", ">": "more than", "<": "less than"}
    return tuple(
        f"{name} is {gates[name]:.3f}, the gate asks for {limits[bars[name][0]]} {bars[name][1]} ({MEANINGS[name]})"
        for name in failed
        if gates.get(name) is not None and name in bars
    )


async def save_model(log: RunLog, artifacts: ArtifactStore, judged: Judged | None, folder: Path) -> Path | None:
    """Write the promoted model, else the last one that was judged, else the best one that was measured.

    Returns:
        the model file; None when no model is better than the trivial baseline.
    """
    chosen = _chosen(log)
    if chosen is None:
        return None
    packet, model_hash, recipe_hash = chosen
    model = await artifacts.get(model_hash)
    schema = json.loads(await artifacts.get(log.brief["schema"])) if "schema" in log.brief else None
    name = "candidate" if log.promoted is None else "model"
    record = {
        "format": FORMAT,
        "status": "candidate: the promotion gate refused it" if log.promoted is None else "promoted",
        "model": {"file": f"{name}.skops", "hash": model_hash},
        "trusted": BEYOND_SKOPS,
        "run_id": log.run_id,
        "log": {"shard": packet.shard, "seq": packet.seq, "packet_id": str(packet.packet_id)},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
        "recipe": json.loads(await artifacts.get(recipe_hash)),
        "metrics": _metrics(packet, judged),
        "schema": schema,
    }
    return await _write(folder / f"{name}.skops", model, record)


async def save_all_rows(log: RunLog, artifacts: ArtifactStore, folder: Path) -> Path | None:
    """Write the promoted recipe as it was trained on every row, `all_rows.skops`; None where the log promises none."""
    packet = log.all_rows
    if packet is None or log.promoted is None:
        return None
    model_hash = packet.payload["artifact_hash"]
    record = {
        "format": FORMAT,
        "status": "trained on every row, never scored: no row is left that could judge it",
        "model": {"file": "all_rows.skops", "hash": model_hash},
        "trusted": BEYOND_SKOPS,
        "run_id": log.run_id,
        "log": {"shard": packet.shard, "seq": packet.seq, "packet_id": str(packet.packet_id)},
        "recipe_of": log.promoted.payload["artifact_hash"],
    }
    return await _write(folder / "all_rows.skops", await artifacts.get(model_hash), record)


async def _write(path: Path, model: bytes, record: JsonObject) -> Path:
    await asyncio.to_thread(path.write_bytes, model)
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    await asyncio.to_thread(path.with_suffix(".json").write_text, text, encoding="utf-8")
    return path


def _chosen(log: RunLog) -> tuple[LoggedPacket, str, str] | None:
    """Return (the packet that names the model, the model's hash, the recipe's hash)."""
    recipe = log.validations[-1].evidence[2] if log.validations else ""
    if log.promoted is not None:
        return log.promoted, log.promoted.payload["artifact_hash"], recipe
    if log.validations:
        return log.validations[-1], log.validations[-1].evidence[1], recipe
    measured = [one for one in log.evaluations if len(one.evidence) == 3]
    best = max(measured, key=lambda one: one.payload["metric_set"]["outcome"], default=None)
    if best is None or best.payload["metric_set"]["outcome"] <= 0:
        return None
    return best, best.evidence[1], best.evidence[2]


def _metrics(packet: LoggedPacket, judged: Judged | None) -> JsonObject:
    if judged is None:
        return {"measured_on": "held-out rows", "gates": dict(packet.payload["metric_set"])}
    return {
        "measured_on": f"{judged.rows} untouched rows",
        "loss_name": judged.loss_name,
        "loss": judged.loss,
        "baseline_loss": judged.baseline_loss,
        "gates": judged.gates,
    }
