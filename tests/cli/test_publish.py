"""``bayesnorm publish`` as a person types it."""

import hashlib
import shutil
from pathlib import Path

import pytest
from drawn_cells import draw_cells
from published import NAME, trained

from bayesnorm.data.cells import cells
from bayesnorm.models import available, load
from bayesnorm.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    return root, trained(root)


@pytest.fixture
def there(made, tmp_path):
    shutil.copytree(made[0] / "run", tmp_path / "run")
    return tmp_path / "run"


def test_publish_writes_checks_and_says_so(there, made, bayesnorm_):
    status, out, err = bayesnorm_("publish", "run", "--name", NAME, "--to", "weights", "--samples", "10")
    assert (status, err) == (0, "")
    checksum, path = out.splitlines()[0].split("  ")
    assert Path(path) == Path("weights") / f"{NAME}.safetensors"
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == checksum
    assert "half precision changes no probability by more than 0.00" in out
    assert f'bayesnorm.models.load("{NAME}", folder="weights")' in out
    assert available("weights") == [NAME]
    accuracy = load(NAME, "weights").card["metrics"]["mc10"]["accuracy"]
    assert f"test accuracy {100 * accuracy:.2f} %" in out
    assert RunFolder(there).read("evaluation-test.json")["metrics"]["mc10"]["accuracy"] == accuracy


def test_the_folder_is_this_one_unless_another_is_named(there, bayesnorm_):
    assert bayesnorm_("publish", "run", "--name", NAME, "--samples", "0")[0] == 0
    assert available(".") == [NAME]
    status, _, err = bayesnorm_("publish", "run", "--name", NAME)
    assert status == 1
    assert f"{NAME}.safetensors is there already: choose another name or folder, or remove it first" in err


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["nowhere", "--name", NAME], 1, "nowhere is no run: there is no such folder"),
        (["run"], 2, "Missing option '--name'"),
        (["run", "--name", NAME, "--to", "run"], 1, f"--to run/{NAME}.json is in the folder of a run"),
        (["run", "--name", "My Net"], 1, "name 'My Net': use small letters, digits and single hyphens"),
    ],
    ids=str,
)
def test_bad_input(args, status, words, there, bayesnorm_):
    found, out, err = bayesnorm_("publish", *args)
    assert (found, out) == (status, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_run_that_has_not_finished(there, bayesnorm_):
    (there / "result.json").unlink()
    status, _, err = bayesnorm_("publish", "run", "--name", NAME)
    assert status == 1
    assert "run has not finished: train it with --resume first" in err


def test_a_network_of_reduced_frames_takes_grey_values_as_bytes_too(bayesnorm_):
    draw_cells(Path("set"))
    train = ["--data", "cells", "--dir", "set", "--reduce", "2", "--width", "0.125", "--epochs", "2", "--lr", "0.003"]
    assert bayesnorm_("train", *train, "--warmup-steps", "1", "--samples", "0", "--out", "run")[0] == 0
    status, out, _ = bayesnorm_("publish", "run", "--name", "small-cells", "--samples", "2")
    assert status == 0
    assert "validation accuracy" in out
    assert "of the pixels of 3 validation images" in out
    net, frames = load("small-cells", "."), cells("set", reduce=2).val.images
    assert net.card["input"]["reduce"] == 2
    seen = net.standardized(frames)
    # Rounding grey values, and nothing else.
    assert (net.standardized(frames.round().byte()) - seen).abs().max() <= 0.5 / net.std.item() + 1e-4
    assert seen.std() == pytest.approx(1, abs=0.3)
