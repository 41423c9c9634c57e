"""``bayesnorm record``, and figures from records."""

import json
import shutil
from pathlib import Path

import pytest

from bayesnorm.paper import EXHIBITS
from bayesnorm.train.durable import sealed

RESULTS = Path(__file__).parents[2] / "results" / "cifar10"
TRAIN = "train --data digits --width 0.02 --epochs 1 --batch 216 --lr 0.02 --samples 0 --train-eval 32 --device cpu"


def test_record(bayesnorm_):
    assert bayesnorm_(*TRAIN.split(), "--out", "runs/a")[0] == 0
    status, out, err = bayesnorm_("record", "runs/a", "--to", "records")
    assert (status, out, err) == (0, "written: records/a\n", "")
    assert not Path("records/a/checkpoints").exists()
    status, out, _ = bayesnorm_("runs", "records")
    assert (status, "finished" in out) == (0, True)
    again = bayesnorm_(*TRAIN.split(), "--out", "records/a", "--resume")
    assert (again[0], again[2]) == (0, ""), "it is finished, and says so"
    status, _, err = bayesnorm_("eval", "records/a")
    assert (status, "is a record, which has no network" in err) == (1, True)
    status, out, _ = bayesnorm_("report", "records/a", "-o", "page.html")
    assert (status, "a has no checkpoint: it is shown as it was measured" in out) == (0, True)


def test_a_record_that_diverged_needs_no_data(bayesnorm_):
    record = next((RESULTS / "records").glob("cifar10-none-batch8-*"))
    shutil.copytree(RESULTS / "records", "records")
    result = {"state": "diverged", "message": "diverged at step 3", "step": 3, "lr": 0.1}
    (Path("records") / record.name / "result.json").write_bytes(sealed(result))
    status, out, err = bayesnorm_("reproduce", "figA1", "--preset", "paper", "--runs", "records", "--device", "cpu")
    assert (status, "diverged at step 3" in out) == (3, True), err


def test_a_folder_that_is_no_run(bayesnorm_):
    status, _, err = bayesnorm_("record", "nothing", "--to", "records")
    assert status == 1
    assert (
        err == "bayesnorm: nothing is no run: it has no config.json; a run folder is made by `bayesnorm train --out`\n"
    )


PUBLISHED = sorted(path.stem for path in RESULTS.glob("*.json") if path.stem in EXHIBITS)


def test_some_are_published():
    assert "figA1" in PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_those_of_the_published_records(name, bayesnorm_):
    """Without data, without a GPU, in the time that it takes to draw."""
    options = ("--preset", "paper", "--runs", RESULTS / "records", "--out", "again", "--device", "cpu")
    seeds = ("--seeds", "0,1,2") if name == "table1" else ()
    assert bayesnorm_("reproduce", name, *options, *seeds)[0] == 0
    found, published = (json.loads((place / f"{name}.json").read_text()) for place in (Path("again"), RESULTS))
    assert found["measured"] == published["measured"]
    assert found["runs"] == published["runs"]


def test_nothing_is_trained_among_records(bayesnorm_):
    assert bayesnorm_(*TRAIN.split(), "--out", "runs/a")[0] == 0
    assert bayesnorm_("record", "runs/a", "--to", "records")[0] == 0
    status, _, err = bayesnorm_("reproduce", "fig1", "--preset", "smoke", "--runs", "records", "--device", "cpu")
    assert status == 1
    assert err == (
        "bayesnorm: records holds records of runs, and digits-none-seed0 is not among them: record that run too, or "
        "name another folder with --runs, where it is trained\n"
    )
    assert [path.name for path in Path("records").iterdir()] == ["a"]
