"""Scenario data as TOML text. `json` writes strings, numbers and booleans as TOML reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Data = dict[str, Any]


def to_toml(data: Mapping[str, Any]) -> str:
    """A scenario file: plain keys, [host], [config.*], then [[guest]], [[at]] and [[after]], in the order of the data."""
    lines = [*_pairs({key: data[key] for key in ("summary", "until")})]
    tables = {"host": data.get("host", {}), **{f"config.{name}": keys for name, keys in data.get("config", {}).items()}}
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_pairs(table)] if table else []
    for name in ("guest", "at", "after"):
        for entry in data.get(name, []):
            lines += ["", f"[[{name}]]", *_pairs(entry)]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{key} = {value_text(value)}" for key, value in table.items())


def value_text(value: object) -> str:
    """One value on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {value_text(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
