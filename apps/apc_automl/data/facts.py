"""What a table looks like: the facts that go into the research briefs and the report."""

from typing import Any

from apc_automl.data.split import Parts
from apc_automl.data.table import Table, describe
from apc_automl.data.table_schema import ColumnKind, ProblemKind

JsonObject = dict[str, Any]


def profile_table(table: Table, parts: Parts) -> JsonObject:
    """Return a JSON object: problem, sizes of the parts, columns with their missing share, target summary, notes."""
    schema = table.schema
    return {
        "target": schema.target,
        "problem": schema.problem.value,
        "rows": len(table.frame),
        "parts": {
            "train": len(parts.train),
            "held_out": len(parts.held_out),
            "untouched": [len(rows) for rows in parts.untouched],
        },
        "numeric_columns": len(schema.names(ColumnKind.NUMERIC)),
        "categorical_columns": len(schema.names(ColumnKind.CATEGORICAL)),
        "date_columns": len(schema.names(ColumnKind.DATE)),
        "text_columns": len(schema.names(ColumnKind.TEXT)),
        "missing_share": {
            column.name: round(float(table.frame[column.name].isna().mean()), 4)
            for column in schema.columns
            if table.frame[column.name].isna().any()
        },
        "target_summary": _target_summary(table),
        "features": dict(describe(schema.columns)),
        "notes": list(schema.notes),
    }


def _target_summary(table: Table) -> JsonObject:
    labels = table.frame[table.schema.target]
    if table.schema.problem is ProblemKind.CLASSIFICATION:
        shares = labels.value_counts(normalize=True)
        return {str(label): round(float(shares[label]), 4) for label in table.schema.classes}
    return {
        "mean": round(float(labels.mean()), 6),
        "deviation": round(float(labels.std()), 6),
        "lowest": round(float(labels.min()), 6),
        "highest": round(float(labels.max()), 6),
    }
