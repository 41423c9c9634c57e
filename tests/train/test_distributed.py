"""Two processes of gloo against one that has the whole batch. All cases share one launch; see ``two_processes.py``."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
import two_processes
from small_data import ALONE, difference, made_up, network, state
from two_processes import CASES, LOCAL, RUN

import bayesnorm
from bayesnorm.cli import main
from bayesnorm.train import Config, fit
from bayesnorm.train.run_folder import RunFolder
from bayesnorm.train.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")
SCRIPT = Path(two_processes.__file__)
PLACES = os.pathsep.join([str(Path(bayesnorm.__file__).parents[1]), str(SCRIPT.parent)])
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def start(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PLACES}
    return subprocess.Popen(
        [*LAUNCH, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def ended(process):
    """Status and output; a launch that hangs is ended."""
    try:
        output, _ = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.terminate()
        pytest.fail(f"the launch hangs: {process.communicate()[0]}")
    return process.returncode, output


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The folder of results of two processes."""
    out = tmp_path_factory.mktemp("both")
    status, output = ended(start(SCRIPT, out))
    assert status == 0, output
    return out


def steps(out, rank, name):
    tensors = safetensors.torch.load_file(out / f"steps-{rank}.safetensors")
    found = {key.partition("/")[2]: value for key, value in tensors.items() if key.partition("/")[0] == name}
    return found, json.loads((out / f"steps-{rank}.json").read_text())[name]


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_one_process(name, both):
    expected, measured = CASES[name].run(ALONE)
    for rank in (0, 1):
        found, record = steps(both, rank, name)
        assert "error" not in record
        assert difference({key: found[key] for key in expected}, expected) < 1e-5
        assert len(found) == len(expected)
        for key in ("train_loss", "train_nll", "kl", "val_nll", "val_accuracy", "train_eval_nll", "lr"):
            assert record[key] == pytest.approx(measured[key], rel=1e-5), key
        assert record["sums"] == pytest.approx(measured["sums"], rel=1e-5)
        assert record["sigma_over_s"] == pytest.approx(measured["sigma_over_s"], rel=1e-5)


def test_local_batch_norm_trains_with_its_own_statistics_and_equal_parameters(both):
    found = [steps(both, rank, "local")[0] for rank in (0, 1)]
    alone, _ = LOCAL.run(ALONE)
    parameters = [name for name, _ in network("batch").named_parameters()]
    assert all(torch.equal(found[0][name], found[1][name]) for name in parameters)
    assert difference({n: found[0][n] for n in parameters}, {n: alone[n] for n in parameters}) > 1e-3
    assert all(value.isfinite().all() for value in found[0].values())


def runs(out):
    return [json.loads((out / f"runs-{rank}.json").read_text()) for rank in (0, 1)]


def test_only_the_first_process_writes_and_tells(both):
    first, second = runs(both)
    assert second["events"] == 0
    # Two trials of three steps, the start, six steps, two epochs, the last checkpoint.
    assert first["events"] == 2 * (3 + 1) + 1 + 6 + 2 + 1
    lines = [json.loads(line) for line in (both / "run" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines].count("start") == len({line["pid"] for line in lines if "pid" in line}) + 2
    assert len((both / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert first["epochs"] == second["epochs"] == 2
    assert first["digest"] == second["digest"]


def test_the_search_is_that_of_one_process(both):
    first, second = runs(both)
    assert first["lr"] == second["lr"]
    alone = fit(network("weight", "bayes"), made_up(), RUN)
    assert first["lr"] == pytest.approx(alone.lr, rel=1e-9)
    stored = json.loads((both / "run" / "lr_search.json").read_text())["trials"]
    assert [trial["loss"] for trial in stored] == pytest.approx([t.loss for t in alone.search.trials], rel=1e-5)


@pytest.mark.parametrize("what", ["end", "search"])
def test_what_is_finished_can_be_asked_for_again(what, both):
    """The end without its result.json, as a kill in the last moment leaves it; the search from a checkpoint."""
    for found in runs(both):
        assert what not in found["errors"]


def test_what_is_recorded_is_the_network_that_is_saved(both):
    """Local batch norm has other running averages in every process."""
    checkpoint, history = RunFolder(both / "local").peek()
    assert [found["local"] for found in runs(both)] == [history] * 2
    net = network("batch")
    net.load_state_dict(
        {name.removeprefix("net."): value for name, value in checkpoint.tensors.items() if name.startswith("net.")}
    )
    measured = Trainer(net, made_up(), Config(), 0.1, ALONE).evaluate("val")
    assert history[-1]["val_nll"] == pytest.approx(measured.nll, rel=1e-5)


def test_a_checkpoint_of_two_processes_resumes_in_one(both, tmp_path):
    """Finished: the network comes back; with a warning that the number of processes is another."""
    config = RUN
    with pytest.warns(UserWarning, match="processes was 2, now it is 1: the resumed run may differ"):
        run = fit(network("weight", "bayes"), made_up(), config, out=both / "run", resume=True)
    alone = fit(network("weight", "bayes"), made_up(), config)
    assert difference(state(run.net), state(alone.net)) < 1e-5


# The command line under torchrun.

OPTIONS = [
    "--width",
    "0.0625",
    "--batch",
    "101",
    "--epochs",
    "12",
    "--lr",
    "0.01",
    "--samples",
    "0",
    "--train-eval",
    "0",
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of 12 epochs, stopped by SIGTERM to the launcher during the second or a later one."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    process = start("-m", "bayesnorm", "train", *OPTIONS, "--out", out)
    metrics = out / "metrics.jsonl"
    limit = time.monotonic() + 100
    while not (metrics.exists() and metrics.read_bytes()) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    status, output = ended(process)
    assert status != 0
    return out, output


def test_a_signal_to_the_launcher_saves_and_two_processes_go_on(stopped, tmp_path, capsys):
    out, output = stopped
    assert "stopped by signal 15 after step" in output
    assert "Traceback" not in output.partition("stopped by signal")[0]
    checkpoint, history = RunFolder(out).peek()
    assert 0 < checkpoint.step < 12 * 13
    assert len(history) < 12
    assert RunFolder(out).result() is None
    # 1,294 samples in batches of 101: the last has 82, all of them unequal shares or not.
    status, output = ended(start("-m", "bayesnorm", "train", "--out", out, "--resume"))
    assert status == 0, output
    assert output.count(f"from step {checkpoint.step}") == 1, "one process prints"
    assert output.count("accuracy") == 1
    assert RunFolder(out).result()["steps"] == 12 * 13
    assert main(["train", *OPTIONS, "--out", str(tmp_path / "alone")]) == 0
    assert "bayesnorm: " not in capsys.readouterr().err
    ours, alone = (
        [json.loads(line) for line in (p / "metrics.jsonl").read_text().splitlines()] for p in (out, tmp_path / "alone")
    )
    for mine, other in zip(ours, alone, strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
        assert (mine["epoch"], mine["step"], mine["lr"]) == (other["epoch"], other["step"], other["lr"])
    assert ours[0]["train_loss"] == pytest.approx(alone[0]["train_loss"], rel=1e-4)


def test_a_batch_that_is_too_small_for_the_processes_is_one_line(tmp_path):
    status, output = ended(start("-m", "bayesnorm", "train", *OPTIONS, "--batch", "1", "--out", tmp_path / "run"))
    assert status != 0
    lines = [line for line in output.splitlines() if line.startswith("bayesnorm: ")]
    assert lines
    assert all("batch=1" in line and "2 processes; choose another" in line for line in lines)


def test_three_processes_resume_to_the_same_end(tmp_path):
    """The sum of three numbers depends on their order, that of two does not."""
    options = ["--width", "0.0625", "--epochs", "2", "--batch", "216", "--lr", "0.02", "--samples", "0", "--resume"]
    command = [*LAUNCH[:-1], "--nproc-per-node=3", "-m", "bayesnorm", "train", *options, "--checkpoint-steps", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PLACES}
    results = []
    for _ in range(2):
        done = subprocess.run(
            [*command, "--out", str(tmp_path)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        results.append((RunFolder(tmp_path).result(), (tmp_path / "metrics.jsonl").read_bytes()))
        # The end is forgotten: the next launch goes on from the checkpoint before it.
        (tmp_path / "result.json").unlink()
        for file in sorted((tmp_path / "checkpoints").iterdir())[2:]:
            file.unlink()
    assert results[0] == results[1]
