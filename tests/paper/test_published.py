"""What is published of the full protocol is what the records of its runs give, and the page that shows it says how."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bayesnorm.cli.options import read_settings
from bayesnorm.paper import EXHIBITS, PRESETS, Lab, reproduce
from bayesnorm.paper.cells_table import cells_table
from bayesnorm.paper.reproduce import files_of
from bayesnorm.train.identity import settings_digest
from bayesnorm.train.job import Job

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "cifar10"
SEEDS = (0, 1, 2)
IDS = [name for name in EXHIBITS if (PUBLISHED / f"{name}.json").exists()]
CELLS = ROOT / "results" / "cells"
CHANGED = [path for name in EXHIBITS for of in (PUBLISHED, CELLS) for path in sorted(of.glob(f"*/{name}.json"))]
"""With other settings than the preset's: fewer epochs, reduced frames."""


def refused(names: Any) -> Any:
    raise AssertionError(f"{names} would be trained")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Has the records, neither data nor networks; of all rows there are three seeds."""
    preset = replace(PRESETS["paper"], table_seeds=SEEDS, seeds=SEEDS)
    return Lab(tmp_path_factory.mktemp("again"), preset, refused, runs=PUBLISHED / "records")


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Everything that a document says, by its place."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in leaves(part, f"{place}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in leaves(part, f"{place}/{i}").items()}
    return {place: value}


def assert_equal(found: Any, published: Any) -> None:
    """But for the versions, and the last digits of numbers."""
    here, there = leaves(json.loads(json.dumps(found))), leaves(published)
    here, there = ({k: v for k, v in some.items() if not k.startswith("/versions/")} for some in (here, there))
    numbers = {place: value for place, value in there.items() if isinstance(value, float)}
    assert {place: value for place, value in here.items() if place not in numbers} == {
        place: value for place, value in there.items() if place not in numbers
    }
    assert {place: here[place] for place in numbers} == pytest.approx(numbers, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", IDS)
def test_records_give_what_is_published(lab: Lab, name: str) -> None:
    assert_equal(reproduce(EXHIBITS[name], lab), json.loads((PUBLISHED / f"{name}.json").read_text()))
    assert all(path.is_file() for path in files_of(PUBLISHED, name))


@pytest.mark.parametrize("path", CHANGED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_records_of_changed_settings_give_what_is_published(tmp_path: Path, path: Path) -> None:
    published = json.loads(path.read_text())
    lab = Lab(tmp_path, PRESETS["paper"].changed(published["set"]), refused, runs=path.parents[1] / "records")
    assert_equal(reproduce(EXHIBITS[path.stem], lab), published)
    assert all(there.is_file() for there in files_of(path.parent, path.stem))


def test_the_page_has_the_commands_of_what_is_published_with_changed_settings() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"bayesnorm reproduce (\w+) --preset paper --(?:cells-)?dir \S+((?: +--set \S+=\S+)+)", page)
    said = [(name, read_settings(re.findall(r"--set (\S+)", settings))) for name, settings in commands]
    published = [(path.stem, json.loads(path.read_text())["set"]) for path in CHANGED]
    in_order = [sorted(json.dumps(some, sort_keys=True) for some in both) for both in (said, published)]
    assert in_order[0] == in_order[1]


def test_the_table_of_the_cells_is_that_of_the_records() -> None:
    found = cells_table(sorted((CELLS / "records").iterdir()))
    assert_equal(found, json.loads((CELLS / "table.json").read_text()))


def test_the_fleets_of_the_cells_are_those_of_the_records() -> None:
    digests = {settings_digest(json.loads(path.read_text())) for path in (CELLS / "records").glob("*/config.json")}
    runs = [run for path in (CELLS / "fleets").iterdir() for run in json.loads(path.read_text())]
    jobs = [Job(Path(run.pop("out")), run) for run in runs]
    assert jobs
    for job in jobs:
        about = dict(zip(("recipe", "config"), map(asdict, job.resolved()), strict=True))
        assert settings_digest(about) in digests, f"{job.path}: no run with these settings was recorded"


def test_the_page_names_and_shows_what_is_published() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text()
    ((command, seeds),) = re.findall(
        r"bayesnorm reproduce (.+) --preset paper --runs results/cifar10/records --seeds (\S+)", page
    )
    assert sorted(command.split()) == sorted(IDS)
    assert seeds == ",".join(map(str, SEEDS))
    shown = re.findall(r"!\[.*?\]\(\.\./results/cifar10/(.+?)\.png\)", page)
    changed = [f"{path.parent.name}/{path.stem}" for path in CHANGED if PUBLISHED in path.parents]
    assert sorted([*shown, "table1"]) == sorted([*IDS, *changed])
