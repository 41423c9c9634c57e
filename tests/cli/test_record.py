"""``bayesnorm record``, and figures from records."""

import json
from pathlib import Path

import pytest

from bayesnorm.paper import EXHIBITS

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
    assert (status, "has no checkpoint" in err) == (1, True)


def test_a_folder_that_is_no_run(bayesnorm_):
    status, _, err = bayesnorm_("record", "nothing", "--to", "records")
    assert status == 1
    assert (
        err == "bayesnorm: nothing is no run: it has no config.json; a run folder is made by `bayesnorm train --out`\n"
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json") if path.stem in EXHIBITS))
def test_published_figures_are_those_of_the_published_records(name, bayesnorm_):
    """Without data, without a GPU, in the time that it takes to draw."""
    options = ("--preset", "paper", "--runs", RESULTS / "records", "--out", "again", "--device", "cpu")
    assert bayesnorm_("reproduce", name, *options)[0] == 0
    found, published = (json.loads((place / f"{name}.json").read_text()) for place in (Path("again"), RESULTS))
    assert found["measured"] == published["measured"]
    assert found["runs"] == published["runs"]
