"""Rows of a table: printed as they come, kept in a JSON file section by section."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import torch

from bayesnorm.train.environment import environment, version

Row = dict[str, Any]
PEERS = ("bayesian-torch", "torchbnn", "torch-uncertainty")


class Rows:
    """One table.

    Arguments:
        section: its name in the file.
        columns: what is printed of a row: header by name of the value.
        key: names of the values by which two rows are the same measurement; a new one replaces the old.
        device: what is measured.
        path: file, which may hold other sections; None keeps nothing.

    The file is written after every row, so that what was measured before a limit of time is there. Rows of earlier
    calls stay if they were measured in the same environment (each has the date and commit of its own call).
    """

    def __init__(
        self, section: str, columns: dict[str, str], key: tuple[str, ...], device: torch.device, path: Path | None
    ) -> None:
        self.section, self.columns, self.key, self.path = section, columns, key, path
        self.environment = {k: v for k, v in environment(device, 1).items() if k != "command"}
        self.environment["peers"] = {name: version(name) for name in PEERS}
        self.commit = self.environment.pop("commit")
        self.date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
        self.widths = {name: max(len(header), WIDTHS.get(name, 8)) for name, header in columns.items()}
        self.printed = 0
        self.rows = self._kept()

    def _kept(self) -> list[Row]:
        """Rows of earlier calls."""
        found = self._document().get(self.section, {"rows": []})
        if found["rows"] and found["environment"] != self.environment:
            print(f"{self.section}: {len(found['rows'])} rows of another environment are dropped", flush=True)
            return []
        return list(found["rows"])

    def _document(self) -> dict[str, Any]:
        if self.path is None or not self.path.exists():
            return {}
        document: dict[str, Any] = json.loads(self.path.read_text())
        return document

    def add(self, row: Row) -> None:
        """Print it, and write the file."""
        if not self.printed:
            print("  ".join(_cell(header, self.widths[name], name) for name, header in self.columns.items()))
        self.printed += 1
        print("  ".join(_cell(row.get(name), self.widths[name], name) for name in self.columns), flush=True)
        if "failed" in row:
            print(f"  failed: {row['failed']}", flush=True)
        same = tuple(row.get(name) for name in self.key)
        self.rows = [old for old in self.rows if tuple(old.get(name) for name in self.key) != same]
        self.rows.append({**row, "date": self.date, "commit": self.commit})
        if self.path is not None:
            document = {**self._document(), self.section: {"environment": self.environment, "rows": self.rows}}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(document, indent=1) + "\n")


WIDTHS = {"subject": 34, "method": 26, "network": 9, "mode": 16, "axis": 6, "group": 10}
"""Of columns that hold text; they are set to the left."""


def _cell(value: object, width: int, name: str) -> str:
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else ""
    elif isinstance(value, float):
        text = f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"
    else:
        text = str(value)
    return text.ljust(width) if name in WIDTHS else text.rjust(width)
