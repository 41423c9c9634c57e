"""``bayesnorm train --fleet``: a file of runs, trained at once."""

import json

import pytest
from drawn_cells import draw_cells

from bayesnorm.cli.fleet import read_fleet
from bayesnorm.train.run_folder import RunFolder

QUICK = ("--epochs", "1", "--batch", "256", "--width", "0.0625", "--samples", "2")


def write(path, runs):
    path.write_text(json.dumps(runs))
    return path


def test_runs_of_a_file_are_trained_and_compared(tmp_path, bayesnorm_):
    file = write(
        tmp_path / "fleet.json",
        [
            {"norm": "batch", "scale": "point", "lr": 0.05, "out": "runs/bn"},
            {"norm": "weight", "scale": "bayes", "lr": 0.01},
            {"norm": "weight", "scale": "bayes", "lr": 0.01, "seed": 1},
        ],
    )
    status, out, err = bayesnorm_("train", "--fleet", file, *QUICK)
    assert status == 0, err
    names = ["runs/bn", "runs/digits-weight+projection+bayes-seed0", "runs/digits-weight+projection+bayes-seed1"]
    for name in names:
        assert RunFolder(tmp_path / name).result()["state"] == "finished"
        assert name in out
    status, out, err = bayesnorm_("train", "--fleet", file, *QUICK)
    assert status == 1
    assert "holds a run already" in err
    status, again, err = bayesnorm_("train", "--fleet", file, *QUICK, "--resume")
    assert status == 0, err
    assert "epoch" not in again
    assert "3 runs, test set" in again


def test_runs_are_compared_on_the_validation_set(tmp_path, bayesnorm_):
    file = write(tmp_path / "fleet.json", [{"norm": "weight", "lr": 0.01, "out": "tried"}])
    status, out, err = bayesnorm_("train", "--fleet", file, *QUICK, "--split", "val")
    assert status == 0, err
    assert "1 runs, validation set" in out
    assert [path.name for path in (tmp_path / "tried").glob("evaluation-*")] == ["evaluation-val.json"]


def test_other_data_beside_cells(tmp_path, bayesnorm_):
    """The folder is that of the cells, their frames are counted, and nobody calls those for validation a test set."""
    cells = draw_cells(tmp_path / "drawn", frames=3, side=32)
    runs = [{"data": "cells", "out": "a"}, {"data": "cells", "seed": 1, "out": "b"}, {"data": "digits", "out": "c"}]
    shared = ("--dir", cells, "--norm", "weight", "--lr", "0.001", "--warmup-steps", "0", "--batch", "2")
    status, out, err = bayesnorm_("train", "--fleet", write(tmp_path / "fleet.json", runs[:2]), *QUICK, *shared)
    assert status == 0, err
    assert out.count("6 frames are annotated and used: 4 for training, 2 for validation") == 1
    assert "2 runs, validation frames (there are no others to test on)" in out
    found = read_fleet(write(tmp_path / "fleet.json", runs), {"directory": str(cells)})
    assert [settings.get("directory") for _, settings in found.values()] == [str(cells), str(cells), None]
    with pytest.raises(ValueError, match="--data digits has no files"):
        read_fleet(write(tmp_path / "fleet.json", [{"data": "digits", "directory": "d"}]), {})


def test_one_that_diverges_is_named_and_the_status_is_3(tmp_path, bayesnorm_):
    file = write(tmp_path / "fleet.json", [{"lr": 0.01, "out": "good"}, {"lr": 1e30, "out": "wild"}])
    status, out, err = bayesnorm_("train", "--fleet", file, *QUICK, "--norm", "weight")
    assert status == 3
    assert "wild: diverged" in out
    assert "some runs of the fleet diverged" in err
    assert RunFolder(tmp_path / "good").result()["state"] == "finished"


def test_a_time_limit_exits_143_and_resume_goes_on(tmp_path, bayesnorm_):
    file = write(tmp_path / "fleet.json", [{"lr": 0.01, "out": "a"}, {"lr": 0.02, "out": "b"}])
    status, _, err = bayesnorm_("train", "--fleet", file, *QUICK, "--stop-after", "0")
    assert (status, err) == (143, "bayesnorm: stopped by the time limit after step 1: pass --resume to go on\n")
    status, out, err = bayesnorm_("train", "--fleet", file, *QUICK, "--resume", "--stop-after", "100")
    assert (status, err) == (0, "")
    assert "a: 1 epochs of 6 steps, learning rate 0.01, from step 1" in out
    assert all(RunFolder(tmp_path / name).result()["state"] == "finished" for name in ("a", "b"))


def test_options_need_not_be_repeated(tmp_path, bayesnorm_):
    file = write(tmp_path / "fleet.json", [{"lr": 0.01, "out": "a"}, {"lr": 0.02, "out": "b"}])
    assert bayesnorm_("train", "--fleet", file, *QUICK, "--stop-after", "0")[0] == 143
    status, _, err = bayesnorm_("train", "--fleet", file, "--resume")
    assert (status, err) == (0, "")
    assert all(RunFolder(tmp_path / name).result()["state"] == "finished" for name in ("a", "b"))
    status, _, err = bayesnorm_("train", "--fleet", file, "--resume", "--epochs", "7")
    assert status == 1
    assert "now it is 7" in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no json", "is no JSON"),
        ("[]", "at least one"),
        ('{"norm": "batch"}', "list of objects"),
        ('[{"nrom": "batch"}]', "unknown setting 'nrom'"),
        ('[{"lr": 0.1}, {"lr": 0.2}]', "fleet.json, run 2: another run goes to"),
        ('[{"lr": -1}]', "lr=-1"),
        ('[{"out": "runs/a"}, {"out": "runs/../runs/a"}]', "another run goes to runs/../runs/a too"),
        ('[{}, {"width": "a"}]', "fleet.json, run 2: width='a': must be a positive number"),
        ('[{"project": "no"}]', "project='no': must be true or false"),
        ('[{"data": ["digits"]}]', "data=['digits']: choose digits"),
        ('[{"data": "strokes", "epochs": "3"}]', "epochs='3': must be a whole number"),
        ('[{"out": 5}]', '"out" is 5'),
    ],
)
def test_bad_files_are_refused_in_one_line(content, why, tmp_path, bayesnorm_):
    (tmp_path / "fleet.json").write_text(content)
    status, _, err = bayesnorm_("train", "--fleet", tmp_path / "fleet.json", *QUICK)
    assert status == 1
    assert why in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_options_of_one_run_and_missing_files_are_refused(tmp_path, bayesnorm_):
    file = write(tmp_path / "fleet.json", [{"lr": 0.1}])
    assert "--out and --tensorboard are for one run" in bayesnorm_("train", "--fleet", file, "--out", "x")[2]
    assert "No such file" in bayesnorm_("train", "--fleet", tmp_path / "missing.json")[2]
