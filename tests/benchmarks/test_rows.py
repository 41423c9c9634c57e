import json
from pathlib import Path

import pytest
import torch
from rows import Rows

COLUMNS = {"subject": "subject", "batch": "batch", "ms": "ms"}


def _rows(path: Path, section: str = "one") -> Rows:
    return Rows(section, COLUMNS, ("subject", "batch"), torch.device("cpu"), path)


def _stored(path: Path, section: str = "one") -> list[tuple[str, int, float]]:
    return [(row["subject"], row["batch"], row["ms"]) for row in json.loads(path.read_text())[section]["rows"]]


def test_rows_are_on_disk_at_once_and_a_new_one_replaces_that_of_the_same_measurement(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gpu.json"
    rows = _rows(path)
    rows.add({"subject": "a", "batch": 32, "ms": 1.0})
    assert _stored(path) == [("a", 32, 1.0)]
    rows.add({"subject": "b", "batch": 32, "ms": 2.0})
    again = _rows(path)
    again.add({"subject": "a", "batch": 32, "ms": 3.0})
    again.add({"subject": "a", "batch": 256, "ms": 4.0})
    assert _stored(path) == [("b", 32, 2.0), ("a", 32, 3.0), ("a", 256, 4.0)]


def test_sections_leave_each_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    one, two = _rows(path), _rows(path, "two")
    one.add({"subject": "a", "batch": 1, "ms": 1.0})
    two.add({"subject": "b", "batch": 1, "ms": 2.0})
    one.add({"subject": "c", "batch": 1, "ms": 3.0})
    assert _stored(path) == [("a", 1, 1.0), ("c", 1, 3.0)]
    assert _stored(path, "two") == [("b", 1, 2.0)]


def test_rows_of_another_machine_are_not_mixed_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.json"
    _rows(path).add({"subject": "a", "batch": 1, "ms": 1.0})
    document = json.loads(path.read_text())
    document["one"]["environment"]["device"] = "another"
    path.write_text(json.dumps(document))
    _rows(path).add({"subject": "b", "batch": 1, "ms": 2.0})
    assert _stored(path) == [("b", 1, 2.0)]
    assert "1 rows of another environment are dropped" in capsys.readouterr().out


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows("one", COLUMNS, ("subject",), torch.device("cpu"), None)
    rows.add({"subject": "a", "batch": 32, "ms": 0.25})
    rows.add({"subject": "b", "batch": 32, "failed": "RuntimeError: no"})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["subject", "batch", "ms"],
        ["a", "32", "0.250"],
        ["b", "32", "-"],
        ["failed:", "RuntimeError:", "no"],
    ]
