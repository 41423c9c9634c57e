"""The commands as a person types them, in a folder of their own."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import shellingham
import torch

import bayesnorm
from bayesnorm.cli import main
from bayesnorm.cli import world as cli_world
from bayesnorm.cli.runs import _scores as scores
from bayesnorm.cli.world import choose_device, distributed
from bayesnorm.evaluate import deep_ensemble
from bayesnorm.models.all_cnn import AllCNN
from bayesnorm.models.described import Description
from bayesnorm.train import defaults, load
from bayesnorm.train import recipe as recipes
from bayesnorm.train.run_folder import RunFolder

QUICK = ["--width", "0.0625", "--batch", "256", "--epochs", "2", "--train-eval", "0", "--device", "cpu"]
GIVEN = [*QUICK, "--lr", "0.02", "--samples", "12"]
DEFAULT = Path("runs/digits-analytic+projection+bayes-seed0")
WAYS = ["single", "moments", "MC-10", "MC-12"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, made once."""
    root = tmp_path_factory.mktemp("finished")
    before = Path.cwd()
    os.chdir(root)
    try:
        assert main(["train", *GIVEN]) == 0
    finally:
        os.chdir(before)
    return root


@pytest.fixture
def there(finished, tmp_path):
    """A copy of the finished run, in the folder in which commands run."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    return tmp_path / DEFAULT


def images(root, count=20):
    image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(0)
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(count):
            values = torch.randint(0, 256, (64,), generator=generator, dtype=torch.uint8)
            image.frombytes("L", (8, 8), bytes(values.tolist())).save(root / name / f"{number:02}.png")
    return root


def one_line(error):
    """An error is one line on stderr, after the name of the program."""
    assert error.startswith("bayesnorm: ")
    assert error.count("\n") == 1
    return error


# train


def test_train_shows_and_keeps_everything(bayesnorm_):
    status, out, err = bayesnorm_("train", *GIVEN)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2 epochs of 6 steps, learning rate 0.02"
    assert re.fullmatch(r"epoch 1/2 loss \d+\.\d{4} \| val \d+\.\d\d %, NLL \d+\.\d{4}", lines[1])
    assert lines[2].startswith("epoch 2/2")
    words = out.split()
    for name in ("accuracy", "NLL", "NLL/T", "T", "Brier", "ECE", "AURC", "analytic+projection+bayes"):
        assert name in words
    assert [word for word in words if word in ("single", "moments", "MC-10", "MC-12")] == WAYS
    assert "digits, test, 359 targets, step 12" in out
    assert "learned sigma/s per layer" in out
    names = {"config.json", "metrics.jsonl", "events.jsonl", "result.json", "checkpoints", "evaluation-test.json"}
    assert names <= {path.name for path in DEFAULT.iterdir()}
    assert json.loads((DEFAULT / "result.json").read_text())["state"] == "finished"
    metrics = json.loads((DEFAULT / "evaluation-test.json").read_text())["metrics"]
    assert set(metrics) == {"single", "moments", "mc10", "mc12"}
    assert f"{100 * metrics['single']['accuracy']:.2f} %" in out
    assert f"{metrics['mc12']['nll']:.4f}" in out


def test_settings_are_compared_without_the_test_set(bayesnorm_, tmp_path):
    command = ("train", *GIVEN, "--norm", "weight", "--split", "val", "--out", "tried")
    status, out, _ = bayesnorm_(*command)
    assert status == 0
    assert "digits, val, 144 targets" in out
    assert (tmp_path / "tried/evaluation-val.json").exists()
    assert not (tmp_path / "tried/evaluation-test.json").exists()
    status, again, _ = bayesnorm_(*command, "--resume")
    assert status == 0
    assert "epoch" not in again
    assert not (tmp_path / "tried/evaluation-test.json").exists()


def test_the_settings_are_stored(finished):
    about = json.loads((finished / DEFAULT / "config.json").read_text())
    assert about["config"].items() >= {"epochs": 2, "batch": 256, "lr": 0.02, "project": True}.items()
    recipe = {"data": "digits", "model": "all-cnn", "width": 0.0625, "padding": "same", "norm": "analytic"}
    assert about["recipe"].items() >= recipe.items()
    assert about["environment"]["threads"] == torch.get_num_threads()


def test_what_was_trained_loads_in_python(finished):
    found = load(finished / DEFAULT)
    metrics = json.loads((finished / DEFAULT / "evaluation-test.json").read_text())["metrics"]
    x = found.data.standardized(found.data.test.images)
    out = bayesnorm.predict(found.net, x, samples=0)
    accuracy = (out.probs.argmax(1) == found.data.test.targets).double().mean()
    assert float(accuracy) == pytest.approx(metrics["single"]["accuracy"])


def test_a_run_is_not_overwritten_and_resume_does_nothing_on_a_finished_one(there, bayesnorm_):
    before = {path.name: path.read_bytes() for path in there.glob("*.json")}
    status, _, err = bayesnorm_("train", *GIVEN)
    assert status == 1
    assert "holds a run already: pass --resume" in one_line(err)
    for more in ([], GIVEN):
        status, out, err = bayesnorm_("train", "--out", DEFAULT, "--resume", "--samples", "12", *more)
        assert (status, err) == (0, "")
        assert "epoch" not in out
        assert "accuracy" in out
    assert {path.name: path.read_bytes() for path in there.glob("*.json")} == before


def test_resume_evaluates_a_finished_run_whose_evaluation_is_of_an_earlier_step(there, bayesnorm_):
    path = there / "evaluation-test.json"
    before = path.read_bytes()
    document = RunFolder(there).read(path.name)
    RunFolder(there).write(path.name, {**document, "step": 6, "network": "as it was then"})
    status, out, err = bayesnorm_("train", "--out", DEFAULT, "--resume", "--samples", "12")
    assert (status, err) == (0, "")
    assert "epoch" not in out
    assert "step 12" in out
    assert path.read_bytes() == before


def test_resume_evaluates_a_finished_run_with_the_draws_that_are_asked_for(there, bayesnorm_):
    status, out, err = bayesnorm_("train", "--out", DEFAULT, "--resume", "--samples", "14")
    assert (status, err) == (0, "")
    assert "MC-14" in out
    assert "epoch" not in out
    assert RunFolder(there).read("evaluation-test.json")["samples"] == 14
    assert "MC-14" in bayesnorm_("train", "--out", DEFAULT, "--resume")[1], "what is there, where none are asked for"


def test_resume_with_other_settings_is_refused(there, bayesnorm_):
    status, _, err = bayesnorm_("train", "--out", DEFAULT, "--resume", "--epochs", "3")
    assert status == 1
    assert "config.epochs was 2, now it is 3; repeat its options, or choose another --out" in one_line(err)
    status, _, err = bayesnorm_("train", "--out", DEFAULT, "--resume", "--data", "strokes")
    assert status == 1
    assert "recipe.data was 'digits', now it is 'strokes'; repeat its options" in one_line(err)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--norm", "batch", "--scale", "point", "--seed", "3"], "digits-batch+projection-seed3"),
        (["--norm", "none", "--scale", "point"], "digits-none-seed0"),
        (["--norm", "weight", "--scale", "noise", "--no-project"], "digits-weight+noise-seed0"),
    ],
)
def test_a_run_without_a_name_gets_one(options, name, bayesnorm_):
    status, out, _ = bayesnorm_("train", *QUICK, "--lr", "0.01", "--epochs", "1", "--samples", "0", *options)
    assert status == 0
    assert (Path("runs") / name / "result.json").exists()
    assert name.removeprefix("digits-").rpartition("-")[0] in out


def test_a_network_trains_on_a_folder_of_images(bayesnorm_, tmp_path):
    images(tmp_path / "pictures")
    options = ["--data", "folder", "--dir", "pictures", "--batch", "8", *QUICK[:2], "--epochs", "1", "--lr", "0.01"]
    status, out, err = bayesnorm_("train", *options, "--samples", "0", "--out", "mine")
    assert (status, err) == (0, "")
    assert "pictures, test, 8 targets" in out
    shutil.move("pictures", "moved")
    status, _, err = bayesnorm_("eval", "mine", "--samples", "0", "--split", "val")
    assert status == 1
    assert "pictures, where the data of mine should be, is not there: name its place with --dir" in one_line(err)
    status, out, _ = bayesnorm_("eval", "mine", "--samples", "0", "--split", "val", "--dir", "moved")
    assert status == 0
    assert "val, 3 targets" in out


def test_a_diverging_run_has_a_status_of_its_own(bayesnorm_):
    status, _, err = bayesnorm_("train", *QUICK, "--lr", "1e20", "--no-project", "--out", "wild")
    assert status == 3
    assert re.search(r"diverged at step \d+ .*choose a smaller --lr", one_line(err))
    assert bayesnorm_("runs", ".")[1].split()[-1] == "diverged"


def test_tensorboard_is_an_option(bayesnorm_):
    pytest.importorskip("tensorboard")
    status, _, err = bayesnorm_("train", *GIVEN, "--out", "run", "--tensorboard")
    assert (status, err) == (0, "")
    assert list(Path("run/tensorboard").glob("events*"))


# lr


def test_lr_searches_draws_and_train_goes_on_with_it(bayesnorm_, monkeypatch):
    options = [*QUICK, "--lr-trials", "3", "--lr-epochs", "1", "--out", "run"]
    status, out, err = bayesnorm_("lr", *options)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.partition(" (")[2].partition(")")[0] for line in lines[:3]] == ["1/3", "2/3", "3/3"]
    stored = json.loads(Path("run/lr_search.json").read_text())["trials"]
    best = min(stored, key=lambda trial: math.inf if trial["loss"] is None else trial["loss"])["lr"]
    assert lines[-1].startswith(f"learning rate {best:.4g}; the curve is in run/figures/lr_search")
    assert Path(lines[-1].rpartition(" ")[2]).stat().st_size > 1000
    shutil.rmtree("run/figures")
    monkeypatch.setattr("bayesnorm.train.lr_search.make_trainer", lambda *args: pytest.fail("searched again"))
    status, out, err = bayesnorm_("train", "--out", "run", "--resume", "--samples", "0")
    assert (status, err) == (0, "")
    assert list(Path("run/figures").glob("lr_search.*")), "a search of train is drawn too"
    assert f"learning rate {best:.3g}" in out
    assert json.loads(Path("run/result.json").read_text())["lr"] == best


# eval


def test_eval_measures_once(there, bayesnorm_, monkeypatch):
    status, out, err = bayesnorm_("eval", DEFAULT, "--samples", "3", "--split", "val")
    assert (status, err) == (0, "")
    assert "digits, val, 144 targets, step 12" in out
    assert {"single", "moments", "MC-3"} <= set(out.split())
    monkeypatch.setattr("bayesnorm.train.documents.evaluate", lambda *args: pytest.fail("measured again"))
    assert bayesnorm_("eval", DEFAULT, "--samples", "3", "--split", "val")[:2] == (0, out)
    assert bayesnorm_("eval", DEFAULT, "--samples", "12")[0] == 0, "as train left it"


def test_eval_of_the_test_set_agrees_with_train(there, bayesnorm_):
    before = (there / "evaluation-test.json").read_bytes()
    (there / "evaluation-test.json").unlink()
    assert bayesnorm_("eval", DEFAULT, "--samples", "12", "--split", "test")[0] == 0
    assert (there / "evaluation-test.json").read_bytes() == before


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_split_can_be_evaluated(split, there, bayesnorm_):
    (there / "evaluation-test.json").unlink()
    assert bayesnorm_("eval", DEFAULT, "--samples", "0", "--split", split)[0] == 0
    stored = json.loads((there / f"evaluation-{split}.json").read_text())
    assert set(stored["metrics"]) == {"single"}
    assert stored["metrics"]["single"]["count"] == {"train": 1294, "val": 144, "test": 359}[split]


@pytest.fixture(scope="module")
def batch_norms(tmp_path_factory):
    """Two finished runs with batch norm that differ by their seed."""
    root = tmp_path_factory.mktemp("batch_norms")
    for seed in ("0", "1"):
        command = ["train", *GIVEN, "--norm", "batch", "--scale", "point", "--seed", seed, "--out"]
        assert main([*command, str(root / f"seed{seed}")]) == 0
    return root


def test_baselines_stand_below_the_evaluation(batch_norms, tmp_path, bayesnorm_, monkeypatch):
    shutil.copytree(batch_norms, tmp_path / "runs")
    status, out, err = bayesnorm_("eval", "runs/seed0", "--samples", "3", "--baselines")
    assert (status, err) == (0, "")
    rows = [line.split("%")[0].split()[:-1] for line in out.splitlines() if "%" in line]
    assert [" ".join(row) for row in rows] == ["batch+projection single", "MC-BN", "SBN", "SBN chi"]
    stored = json.loads(Path("runs/seed0/baselines-test.json").read_text())
    assert list(stored["metrics"]) == ["MC-BN", "SBN", "SBN chi"]
    assert (stored["samples"], stored["step"], stored["split"]) == (3, 12, "test")
    for way in stored["metrics"].values():
        assert f"{way['nll']:.4f}" in out
    monkeypatch.setattr("bayesnorm.train.documents.of_network", lambda *args: pytest.fail("measured again"))
    assert bayesnorm_("eval", "runs/seed0", "--samples", "3", "--baselines")[:2] == (0, out)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert bayesnorm_("eval", "runs/seed0", "--samples", "2", "--baselines")[0] == 0
    assert json.loads(Path("runs/seed0/baselines-test.json").read_text()) == stored, "those of fewer draws are shown"
    assert "MC-BN" not in bayesnorm_("eval", "runs/seed0", "--samples", "3")[1]
    assert bayesnorm_("report", "runs/seed0", "runs/seed1", "-o", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert page.count("SBN chi") > 3, "in the table, and in the sections by the way of predicting"
    folder, stored = RunFolder(Path("runs/seed0")), RunFolder(Path("runs/seed0")).read("baselines-test.json")
    folder.write("baselines-test.json", {**stored, "network": "another"})
    assert bayesnorm_("report", "runs/seed0", "-o", "other.html")[0] == 0
    assert "SBN chi" not in Path("other.html").read_text(), "those of another network are left out"
    folder.write("baselines-test.json", stored)
    assert bayesnorm_("record", "runs/seed0", "--to", "records")[0] == 0
    assert Path("records/seed0/baselines-test.json").read_bytes() == Path("runs/seed0/baselines-test.json").read_bytes()
    Path("runs/seed0/config.json").unlink()
    assert bayesnorm_("train", "--out", "runs/seed0", "--resume")[0] == 0, "it is a run's own file"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "has no baselines, as its network has neither batch norm nor dropout: leave --baselines out"),
        (["--split", "val"], "--baselines are averages over draws, on the test set"),
        (["--samples", "0"], "--baselines are averages over draws, on the test set"),
    ],
)
def test_baselines_that_cannot_be_had(more, message, there, bayesnorm_):
    status, _, err = bayesnorm_("eval", DEFAULT, "--samples", "12", *more, "--baselines")
    assert status == 1
    assert message in one_line(err)
    assert not (there / "baselines-test.json").exists()


def test_an_ensemble_stands_below_its_members(batch_norms, bayesnorm_):
    runs = [batch_norms / f"seed{seed}" for seed in (0, 1)]
    status, out, err = bayesnorm_("ensemble", *runs, "--samples", "12", "-o", "made/ensemble.json")
    assert (status, err) == (0, "")
    document = json.loads(Path("made/ensemble.json").read_text())
    assert list(document["metrics"]) == ["single"], "networks without a posterior"
    assert document["images"] == 359
    assert [(member["run"], member["seed"], member["method"]) for member in document["members"]] == [
        ("seed0", 0, "batch+projection"),
        ("seed1", 1, "batch+projection"),
    ]
    nll = document["metrics"]["single"]["nll"]
    each = [json.loads((run / "evaluation-test.json").read_text())["metrics"]["single"]["nll"] for run in runs]
    assert nll < sum(each) / 2, "Jensen"
    nets = [load(run).net for run in runs]
    data = load(runs[0]).data
    log_probs = deep_ensemble(nets, data.standardized(data.test.images))
    assert nll == pytest.approx(torch.nn.functional.nll_loss(log_probs, data.test.targets).item(), rel=1e-5)
    for value in (nll, *each):
        assert f"{value:.4f}" in out
    assert "ensemble of 2" in out


def test_an_ensemble_of_posteriors_averages_draws_too(there, bayesnorm_):
    assert bayesnorm_("train", *GIVEN, "--seed", "1", "--out", "runs/other")[0] == 0
    before = (there / "evaluation-test.json").read_bytes()
    status, out, _ = bayesnorm_("ensemble", DEFAULT, "runs/other", "--samples", "3", "-o", "e.json")
    assert status == 0
    document = json.loads(Path("e.json").read_text())
    assert list(document["metrics"]) == ["single", "mc3"]
    assert {"MC-3", "MC-12"} <= set(out.split()), "members as they were evaluated"
    assert (there / "evaluation-test.json").read_bytes() == before
    assert "platform" not in document["environment"]
    assert bayesnorm_("ensemble", "runs/other", DEFAULT, "--samples", "3", "-o", "turned.json")[0] == 0
    turned = json.loads(Path("turned.json").read_text())["metrics"]
    for way, found in document["metrics"].items():
        assert turned[way]["nll"] == pytest.approx(found["nll"], rel=1e-6), "the order does not matter"


def test_an_ensemble_that_cannot_be_had(batch_norms, there, bayesnorm_):
    run = batch_norms / "seed0"
    shutil.copytree(run, "twin")
    assert bayesnorm_("train", *GIVEN, "--split-seed", "1", "--out", "elsewhere")[0] == 0
    assert bayesnorm_("train", *GIVEN, "--no-standardize", "--out", "raw")[0] == 0
    for others, message in (
        (["raw"], "standardize their inputs differently"),
        ([], "an ensemble of one network is that network: name two runs or more"),
        (["twin"], "seed0 and twin are the same network: name it once"),
        (["elsewhere"], "were trained on other data or other splits"),
        (["nowhere"], "nowhere is no run"),
    ):
        status, _, err = bayesnorm_("ensemble", run, *others, "-o", "e/e.json")
        assert status == 1
        assert message in one_line(err)
        assert not Path("e").exists()
    settings = Path("twin/config.json").read_bytes()
    for place, message in (
        ("twin/config.json", "is in the folder of a run"),
        ("twin/checkpoints/new/e.json", "is in the folder of a run"),
        ("e", "is a folder: name a file"),
        ("file/e.json", "file is a file, not a folder"),
    ):
        Path("e").mkdir(exist_ok=True)
        Path("file").touch()
        status, _, err = bayesnorm_("ensemble", run, "twin", "-o", place)
        assert status == 1
        assert message in one_line(err)
    assert Path("twin/config.json").read_bytes() == settings


# runs


def test_runs_is_a_table(there, bayesnorm_):
    shutil.copytree(there, there.parent / "deep" / "begun")
    (there.parent / "deep" / "begun" / "result.json").unlink()
    (there.parent / "deep" / "begun" / "evaluation-test.json").unlink()
    (there.parent / "other").mkdir()
    (there.parent / "other" / "config.json").write_text("{}")
    status, out, err = bayesnorm_("runs")
    assert (status, err) == (0, "")
    header = next(line for line in out.splitlines() if "accuracy" in line)
    assert header.split() == ["run", "data", "method", "epochs", "accuracy", "NLL", "NLL", "MC", "state"]
    text = " ".join(out.split())
    assert "2/2" in text
    assert "finished" in text
    assert "resumable" in text
    assert "(val)" in text
    assert "damaged" in text
    history = RunFolder(there).peek()[1]
    assert f"{history[-1]['val_nll']:.4f}" in text
    test = json.loads((there / "evaluation-test.json").read_text())["metrics"]
    assert f"{test['mc12']['nll']:.4f}" in text


def test_runs_are_written_to_a_file(there, bayesnorm_):
    assert bayesnorm_("runs", "--json", "kept/runs.json")[0] == 0
    (found,) = json.loads((there.parents[1] / "kept/runs.json").read_text())["runs"]
    assert (found["run"], found["epochs"]) == (there.name, 2)
    stored = json.loads((there / "evaluation-test.json").read_text())["metrics"]
    assert found["test"]["mc12"]["nll"] == stored["mc12"]["nll"]


@pytest.mark.parametrize(
    "command",
    [
        ["runs", "--json"],
        ["report", DEFAULT, "-o"],
        ["cells-table", DEFAULT, "-o"],
        ["ensemble", DEFAULT, DEFAULT, "-o"],
    ],
    ids=lambda command: command[0],
)
def test_nothing_is_written_among_the_files_of_a_run(command, there, bayesnorm_):
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    for name in ("config.html", "checkpoints/page.html"):
        status, _, err = bayesnorm_(*command, there / name)
        assert status == 1
        assert "is in the folder of a run" in one_line(err)
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


def test_brackets_in_a_name_are_brackets(there, bayesnorm_):
    for name in ("[/b]y", "[bold]x"):
        shutil.copytree(there, there.parent / name)
        status, out, err = bayesnorm_("eval", f"runs/{name}")
        assert (status, err) == (0, "")
        assert name in out
    status, out, err = bayesnorm_("runs")
    assert (status, err) == (0, "")
    assert "[/b]y" in out
    assert "[bold]x" in out


def test_a_file_in_the_place_of_a_run(there, bayesnorm_):
    Path("notes.json").write_text("{}")
    for command in (["eval"], ["report"], ["record", "--to", "kept"], ["ensemble", DEFAULT]):
        status, _, err = bayesnorm_(*command, "notes.json")
        assert status == 1
        assert "notes.json is no run" in one_line(err)


def test_an_evaluation_with_fewer_draws_leaves_the_stored_one(there, bayesnorm_):
    before = (there / "evaluation-test.json").read_bytes()
    status, out, err = bayesnorm_("eval", DEFAULT, "--samples", "2")
    assert (status, err) == (0, "")
    assert "MC-2" in out
    assert (there / "evaluation-test.json").read_bytes() == before


def test_runs_shows_the_last_validation_that_was_measured():
    history = [{"epoch": 1, "val_accuracy": 0.5, "val_nll": 1.25}, {"epoch": 2}]
    assert scores(history, None) == ["(val) 50.00 %", "(val) 1.2500", "-"]
    assert scores(history[1:], None) == ["-", "-", "-"]


def test_runs_of_a_network_that_draws_nothing_have_no_monte_carlo(there, bayesnorm_):
    stored = RunFolder(there).read("evaluation-test.json")
    single = {"single": stored["metrics"]["single"]}
    RunFolder(there).write("evaluation-test.json", {**stored, "metrics": single, "samples": 0})
    assert f"{single['single']['nll']:.4f} - finished" in " ".join(bayesnorm_("runs")[1].split())


def test_a_run_that_is_being_written_is_running(there, bayesnorm_):
    (there / "result.json").unlink()
    script = (
        "import sys; from bayesnorm.train.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).held(): print('held', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bayesnorm.__file__).parents[1])}
    command = [sys.executable, "-c", script, str(there)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout.readline() == "held\n"
        assert "running" in bayesnorm_("runs")[1].split()
        status, _, err = bayesnorm_("train", "--out", DEFAULT, "--resume")
        assert status == 1
        assert "is being written by a running process" in one_line(err)
        other.stdin.close()
    assert "resumable" in bayesnorm_("runs")[1].split()


def test_a_running_run_shows_the_epochs_since_its_last_checkpoint_too(there, bayesnorm_):
    (there / "result.json").unlink()
    shutil.rmtree(there / "checkpoints")
    with RunFolder(there).held():
        assert {"2/2", "running"} <= set(bayesnorm_("runs")[1].split())
    assert {"0/2", "resumable"} <= set(bayesnorm_("runs")[1].split())


def test_looking_at_runs_changes_nothing(there, bayesnorm_):
    before = {path: path.stat().st_mtime_ns for path in there.rglob("*")}
    assert bayesnorm_("runs")[0] == 0
    assert {
        path: path.stat().st_mtime_ns for path in there.rglob("*") if path.name != ".lock"
    }.items() <= before.items()


# data


def test_data_describes_what_is_there(bayesnorm_, tmp_path):
    assert bayesnorm_("data", "digits") == (
        0,
        "digits: 1,294 training, 144 validation, 359 test images of 1 x 8 x 8; 10 classes\n",
        "",
    )
    images(tmp_path / "pictures")
    status, out, _ = bayesnorm_("data", "folder", "--dir", "pictures")
    assert status == 0
    assert out == "pictures: 29 training, 3 validation, 8 test images of 1 x 8 x 8; 2 classes\n"


def test_data_fetches_and_verifies_cifar10(bayesnorm_, monkeypatch):
    module = sys.modules["bayesnorm.data.cifar10"]  # the package has a function of this name
    checked = module.Checked(Path("D/data_batch_1.bin"), 30_730_000, True, "")
    calls = []

    def fetch(directory, progress):
        calls.append(directory)
        progress(10, 100)

    monkeypatch.setattr(module, "fetch", fetch)
    monkeypatch.setattr(module, "verify", lambda directory: [checked])
    monkeypatch.setattr(recipes.datasets, "cifar10", lambda directory, seed: recipes.datasets.digits())
    status, out, err = bayesnorm_("data", "cifar10", "--dir", "D")
    assert (status, err) == (0, "")
    assert calls == [Path("D")]
    assert "D/data_batch_1.bin: 30,730,000 bytes, SHA-256 verified" in out


# demo


@pytest.fixture
def small_demo(monkeypatch):
    """Three rows instead of five, with networks and searches as small as they can be."""
    monkeypatch.setattr("bayesnorm.cli.demo.TABLE", ("none", "batch+projection", "analytic+projection+bayes"))
    small = {"width": 0.0625, "batch": 256, "lr_trials": 2, "lr_epochs": 1, "lr_high": 0.1, "train_eval": 0}
    monkeypatch.setitem(defaults.DEFAULTS, "digits", {**defaults.DEFAULTS["digits"], **small})
    monkeypatch.setattr("bayesnorm.cli.demo.side_by_side", one_after_another)


def one_after_another(names, work, arguments, show):
    """In this process, where the settings are changed; real processes are in test_workers.py."""
    for name in names:
        work(name, show[name], *arguments)


def test_demo_trains_compares_and_draws(bayesnorm_, small_demo, monkeypatch):
    status, out, err = bayesnorm_("demo", "--epochs", "1", "--lr-trials", "2")
    assert (status, err) == (0, "")
    for method in ("none", "batch+projection", "analytic+projection+bayes"):
        assert f"{method}: learning rate" in out
        assert RunFolder(Path("runs/demo") / method).result()["state"] == "finished"
    assert "scikit-learn's digits, test set of 359 images" in out
    for word in ("accuracy", "NLL", "NLL/T", "ECE", "moments", "MC-10", "MC-30"):
        assert word in out.split()
    assert "learned sigma/s per layer" in out
    files = re.search(r"runs in runs/demo, figures: (.*)", out).group(1).split(", ")
    assert {Path(name).stem for name in files} == {"training", "sigma"}
    assert all(Path(name).stat().st_size > 1000 for name in files)
    table = out[out.index("scikit-learn's") :]
    monkeypatch.setattr("bayesnorm.train.trainer.Trainer.step", lambda *args: pytest.fail("trained again"))
    status, again, _ = bayesnorm_("demo", "--epochs", "1", "--lr-trials", "2")
    assert status == 0
    assert again == table, "finished, it shows the table"


def test_demo_with_baselines_has_a_row_for_each(bayesnorm_, small_demo, monkeypatch):
    monkeypatch.setattr("bayesnorm.cli.demo.TABLE", ("none", "batch", "analytic+projection+bayes"))
    monkeypatch.setattr("bayesnorm.cli.demo.SAMPLES", 3)
    monkeypatch.setattr("bayesnorm.evaluate.comparison.MEASURED", 4)
    options = ["demo", "--baselines", "--epochs", "2", "--lr-trials", "1", "--seed", "1"]
    status, out, err = bayesnorm_(*options)
    assert (status, err) == (0, "")
    table = out[out.index("scikit-learn's") : out.index("learned sigma/s")]
    rows = [line.split() for line in table.splitlines() if "%" in line]
    assert [" ".join(words[: words.index("%") - 1]) for words in rows] == [
        *("none single", "batch single", "MC-BN", "SBN", "SBN chi"),
        *("analytic+projection+bayes single", "moments", "MC-3"),
        *("none+dropout single", "MC-drop", "ensemble of 5 batch average"),
    ]
    assert not any("-" in words for words in rows), "all of them have a temperature"
    runs = {path.name for path in Path("runs/demo").iterdir() if path.is_dir()}
    members = {f"batch-seed{seed}" for seed in (2, 3, 4, 5)}
    assert runs == {"none", "batch", "analytic+projection+bayes", "none+dropout", *members}
    lrs = {RunFolder(Path("runs/demo") / name).result()["lr"] for name in ("batch", *members)}
    assert len(lrs) == 1, "the members take the learning rate that was found"
    monkeypatch.setattr("bayesnorm.train.trainer.Trainer.step", lambda *args: pytest.fail("trained again"))
    assert bayesnorm_(*options)[1].startswith(table), "finished, it shows the table"


def test_demo_of_other_epochs_does_not_mix(bayesnorm_, small_demo):
    assert bayesnorm_("demo", "--epochs", "1", "--lr-trials", "2", "--out", "d")[0] == 0
    status, _, err = bayesnorm_("demo", "--epochs", "2", "--lr-trials", "2", "--out", "d")
    assert status == 1
    assert "config.epochs was 1, now it is 2" in one_line(err)


# What goes wrong is one line, and a status that is not 0.


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["dance"], 2, "No such command 'dance'"),
        (["train", "--colour", "red"], 2, "No such option: --colour"),
        (["train", "--norm", "layer"], 2, "'layer' is not one of 'none', 'batch', 'weight', 'analytic'"),
        (["train", "--epochs", "many"], 2, "--epochs"),
        (["train", "--epochs", "0"], 1, "epochs=0: must be a whole number of at least 1"),
        (["train", "--lr", "fast"], 1, "--lr fast: give a number or auto"),
        (["train", "--lr", "-1"], 1, "lr=-1.0: must be 'auto' or a positive number"),
        (["train", "--data", "cifar10"], 1, "--data cifar10 needs --dir"),
        (["train", "--data", "folder", "--dir", "nowhere"], 1, "nowhere: no such folder"),
        (["train", "--dir", "photos"], 1, "photos: --data digits has no files; leave it out, or choose --data cifar10"),
        (["train", "--norm", "none", "--scale", "bayes"], 1, "--scale bayes needs a norm"),
        (["train", "--dropout", "1"], 1, "dropout=1.0: must be at least 0 and below 1"),
        (["train", "--model", "resnet18", "--dropout", "0.5"], 1, "--dropout 0.5 is for --model all-cnn"),
        (["train", "--model", "cell-net"], 1, "--model cell-net does not fit --data digits"),
        (["train", "--padding", "valid", "--model", "all-cnn"], 1, "--padding same"),
        (["train", "--batch", "100000", "--lr", "1"], 1, "batch=100000: choose 1 to 1294"),
        (["train", "--device", "abacus"], 1, "--device abacus: choose auto, cpu, cuda"),
        (["train", "--samples", "-1"], 2, "--samples"),
        (["eval"], 2, "Missing argument"),
        (["eval", "nowhere"], 1, "nowhere is no run: there is no such folder"),
        (["eval", "."], 1, "is no run: it has no config.json"),
        (["runs", "nowhere"], 1, "nowhere: no such folder"),
        (["runs", "."], 1, "holds no run"),
        (["data", "cifar10"], 1, "--data cifar10 needs --dir"),
        (["data", "mnist"], 2, "'mnist' is not one of"),
        (["data", "cells", "--dir", "nowhere"], 1, "nowhere: no such folder"),
        (["demo", "--epochs", "0"], 2, "--epochs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(args, status, words, bayesnorm_):
    found, out, err = bayesnorm_(*args)
    assert found == status
    assert words in one_line(err)
    assert "Traceback" not in out + err


def no_room(*_, **__):
    raise RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 3456000000000 bytes.\nC++ ..."
    )


@pytest.mark.parametrize("place", [(Description, "build"), (AllCNN, "forward")])
def test_out_of_memory_says_what_to_do(place, bayesnorm_, monkeypatch):
    """When the network is built, and in the first pass through it, where other errors mean that sizes do not fit."""
    monkeypatch.setattr(*place, no_room)
    status, _, err = bayesnorm_("train", "--norm", "none", "--out", "run")
    assert status == 1
    assert one_line(err).startswith("bayesnorm: out of memory: ")
    assert "3456000000000 bytes" in err
    assert "smaller images, batches or networks" in err


def test_no_cuda_is_said(monkeypatch):
    monkeypatch.setattr(cli_world.torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="--device cuda: no CUDA device is available; choose cpu"):
        choose_device("cuda")


def test_a_device_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(cli_world.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cli_world.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cli_world.torch.cuda, "current_device", lambda: 1)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:1")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(ValueError, match="--device cuda:2: there are 2, counted from 0"):
        choose_device("cuda:2")


def test_alone_there_are_no_other_processes_to_join(monkeypatch):
    for variables in ({}, {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "4"}):
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with distributed():
            assert not torch.distributed.is_initialized()


def test_debug_shows_where(bayesnorm_):
    status, _, err = bayesnorm_("eval", "nowhere", "--debug")
    assert status == 1
    assert "Traceback" in err
    assert err.rstrip().splitlines()[-1].startswith("bayesnorm: nowhere is no run")


def test_an_error_that_nobody_expected_is_one_line(bayesnorm_, monkeypatch):
    def broken(self):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(recipes.Recipe, "load", broken)
    status, _, err = bayesnorm_("data", "digits")
    assert status == 1
    assert one_line(err) == "bayesnorm: RuntimeError: first line (--debug shows where)\n"


def test_ctrl_c_outside_training_is_130(bayesnorm_, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes.Recipe, "load", interrupted)
    assert bayesnorm_("data", "digits")[0] == 130


def test_a_missing_file_is_named(bayesnorm_, monkeypatch):
    def missing(self):
        raise FileNotFoundError(2, "No such file or directory", "some/file")

    monkeypatch.setattr(recipes.Recipe, "load", missing)
    assert one_line(bayesnorm_("data", "digits")[2]) == "bayesnorm: some/file: No such file or directory\n"


# The program itself.


def started(*args, **variables):
    environment = {**os.environ, "PYTHONPATH": str(Path(bayesnorm.__file__).parents[1]), **variables}
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def program(*args, **variables):
    return started("-m", "bayesnorm", *args, **variables)


def test_python_m_bayesnorm_is_the_program():
    done = program("eval", "nowhere")
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("bayesnorm: nowhere is no run")
    assert done.stdout == ""


@pytest.mark.parametrize("package", ["typer", "safetensors"])
def test_a_missing_extra_is_one_line(package):
    script = f"import sys; sys.modules[{package!r}] = None; from bayesnorm.cli import main; sys.exit(main(['runs']))"
    done = started("-c", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"bayesnorm: the command line needs {package}[.\w]*: pip install 'bayesnorm\[cli\]'\n", one_line(done.stderr)
    )


def test_version(bayesnorm_):
    try:
        expected = version("bayesnorm")
    except PackageNotFoundError:
        pytest.skip("bayesnorm is not installed, its source is on the path")
    assert bayesnorm_("--version") == (0, f"bayesnorm {expected}\n", "")
    assert program("--version").stdout == f"bayesnorm {expected}\n"


def test_without_a_command_there_is_help(bayesnorm_):
    status, out, err = bayesnorm_()
    assert status == 2
    assert "Usage: bayesnorm" in out + err
    assert "demo" in out + err


def test_completion_has_a_script_that_completes(monkeypatch, capsys):
    """Whatever shell the tests are started from, if any."""
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))
    with pytest.raises(SystemExit) as ended:
        main(["--show-completion"])
    assert not ended.value.code
    script = capsys.readouterr().out
    assert "complete -o default -F _bayesnorm_completion bayesnorm" in script
    variable = re.search(r"(_\w+_COMPLETE)=complete_bash", script).group(1)
    done = program(COMP_WORDS="bayesnorm tr", COMP_CWORD="1", **{variable: "complete_bash"})
    assert done.stdout.split() == ["train"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("train --norm a", ["analytic"]), ("train --channels", ["--channels-last"]), ("da", ["data"])],
)
def test_options_and_choices_complete(words, expected, monkeypatch, capsys):
    monkeypatch.setenv("_BAYESNORM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"bayesnorm {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == expected


def test_an_evaluation_of_an_earlier_step_is_not_shown_as_that_of_the_run(there, bayesnorm_):
    folder = RunFolder(there)
    document = folder.read("evaluation-test.json")
    assert "(val)" not in bayesnorm_("runs")[1]
    folder.write("evaluation-test.json", {**document, "step": document["step"] - 1})
    assert "(val)" in bayesnorm_("runs")[1]


def test_images_of_another_kind_are_told_apart(there, tmp_path, bayesnorm_):
    images(tmp_path / "elsewhere")
    status, out, err = bayesnorm_("eval", there, "--samples", 2, "--outside", tmp_path / "elsewhere")
    assert status == 0, err
    assert "40 images of" in out
    assert "of the test set, by MC 2" in " ".join(out.split())
    lines = [line.split() for line in out.splitlines()]
    for name in ("entropy", "mutual_info", "max_prob"):
        (values,) = [words[1:] for words in lines if words[:1] == [name]]
        assert len(values) == 4
        assert all(0 <= float(value) <= 1 for value in values)
    status, _, err = bayesnorm_("eval", there, "--samples", 2, "--outside", tmp_path / "nowhere")
    assert status == 1
    assert "no such folder" in err
