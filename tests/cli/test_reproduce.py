"""``bayesnorm reproduce`` as a person types it."""

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from promises.runs import ENVIRONMENT

from bayesnorm.cli import main
from bayesnorm.paper import EXHIBITS, PRESETS, Preset
from bayesnorm.train.run_folder import RunFolder

TINY = Preset(
    "smoke",
    "one epoch of a network of a few channels",
    images={"data": "digits", "epochs": 1, "width": 0.02, "batch": 512, "train_eval": 32},
    cells={"data": "strokes"},
    by_norm={"none": {"lr": 0.01}, "batch": {"lr": 0.02}},
    norm_batch=600,
)
FIG1 = ("fig1", "--processes", "1", "--device", "cpu")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in an empty folder; its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "smoke", TINY)

    def call(*args: str) -> tuple[int, str, str]:
        status = main(["reproduce", *args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_list_names_everything(reproduce: Call) -> None:
    status, out, err = reproduce("--list")
    assert (status, err) == (0, "")
    rows = [line.split(maxsplit=1) for line in out.splitlines() if line.strip()][2:]
    assert {name: title.strip() for name, title in rows} == {name: found.title for name, found in EXHIBITS.items()}
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "reproduce what? Give ids or all; --list names them"),
        (["fig10"], f"unknown id 'fig10': choose {', '.join(EXHIBITS)} or all"),
        (["fig1", "Fig2"], f"unknown id 'Fig2': choose {', '.join(EXHIBITS)} or all"),
        (
            ["fig1", "--preset", "short"],
            "--preset short needs --dir, the folder of cifar10; or choose --preset smoke",
        ),
        (
            ["fig9", "--preset", "paper"],
            "--preset paper needs --cells-dir, the folder of cells; or choose --preset smoke",
        ),
        (
            ["fig8", "--preset", "short"],
            "--preset short needs --cells-dir, the folder of cells; or choose --preset smoke",
        ),
        (
            ["all", "--preset", "short", "--dir", "."],
            "--preset short needs --cells-dir, the folder of cells; or choose --preset smoke",
        ),
        (
            ["fig1", "fig8", "--preset", "short", "--dir", "."],
            "--preset short needs --cells-dir, the folder of cells; or choose --preset smoke",
        ),
        (["fig1", "--preset", "short", "--dir", "no"], "--dir no: there is no such folder; give that of cifar10"),
        (["fig1", "--set", "epochs=0"], "epochs=0: must be a whole number of at least 1"),
        (["fig1", "--set", "norm=batch"], "--set norm: preset and figures decide it; leave it out"),
        (["fig1", "--set", "padding=no"], "--set padding=no: choose valid, same"),
        (["fig1", "--seeds", "0,1"], "--seeds is for table1 and figA2: name one of them too, or leave it out"),
        (["figA2", "--all-methods"], "--all-methods is for table1: name it too, or leave it out"),
        (
            ["figA2", "--seeds", "0"],
            "--seeds 0: figA2 compares seed 0 with others; give more as in 0,1, or leave figA2 out",
        ),
        (["table1", "--seeds", "0;1"], "--seeds 0;1: give whole numbers as in 0,1,2"),
        (["table1", "--fleet", "--processes", "2"], "--fleet trains in this process: leave --processes out"),
    ],
)
def test_what_cannot_be_done_is_one_line(reproduce: Call, args: list[str], message: str) -> None:
    status, out, err = reproduce(*args, "--device", "cpu")
    assert (status, out, err) == (1, "", f"bayesnorm: {message}\n")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("args", "word"), [(["--preset", "huge"], "huge"), (["--processes", "0"], "--processes")])
def test_a_wrong_option_is_a_usage_error(reproduce: Call, args: list[str], word: str) -> None:
    status, out, err = reproduce("fig1", *args)
    assert (status, out) == (2, "")
    assert word in err
    assert len(err.splitlines()) == 1


def test_figures_share_their_runs_and_are_compared_with_the_paper(reproduce: Call) -> None:
    status, out, err = reproduce("fig1", "fig2", "fig1", "--processes", "1", "--device", "cpu")
    assert (status, err) == (0, "")
    folder = Path("paper-smoke")
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}{suffix}" for name in ("fig1", "fig2") for suffix in (".svg", ".png", ".json")),
        "runs",
    }
    assert {path.name for path in (folder / "runs").iterdir()} == {
        "digits-none-seed0",
        "digits-batch-seed0",
        "digits-batch-norm600-seed0",
    }
    assert out.count("fig1: Batch normalization against standard training (smoke)") == 1
    assert out.count("fig2: The effect of randomness in batch normalization (smoke)") == 1
    measured = json.loads((folder / "fig1.json").read_text())["measured"]["numbers"]["BN, validation accuracy"]
    (line,) = [line.split() for line in out.splitlines() if line.strip().startswith("BN, validation accuracy")]
    assert line[-2:] == [f"{measured:.4g}", "0.93"]
    assert "written: paper-smoke/fig2.svg, paper-smoke/fig2.png, paper-smoke/fig2.json" in out


def test_again_it_says_the_same_without_training(reproduce: Call) -> None:
    args = (*FIG1, "--out", "here")
    first, again = reproduce(*args), reproduce(*args)
    assert first[0] == again[0] == 0
    assert "epoch 1/1" in first[1]
    assert "epoch 1/1" not in again[1]
    assert first[1].endswith(again[1])


def test_a_run_of_other_settings_is_not_overwritten(reproduce: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (*FIG1, "--out", "here")
    assert reproduce(*args)[0] == 0
    before = Path("here/runs/digits-none-seed0/config.json").read_bytes()
    monkeypatch.setitem(PRESETS, "smoke", Preset("smoke", "", {**TINY.images, "epochs": 2}, TINY.cells, TINY.by_norm))
    status, _, err = reproduce(*args)
    assert status == 1
    assert "epochs was 1, now it is 2" in err
    assert len(err.splitlines()) == 1
    assert Path("here/runs/digits-none-seed0/config.json").read_bytes() == before


# A real process.


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``python -m bayesnorm reproduce`` in the background."""
    processes: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bayesnorm", "reproduce", *args, "--out", str(tmp_path / "stopped")]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


FLEET = ("fig1", "--fleet", "--device", "cpu")


@pytest.mark.parametrize(("args", "who"), [(FIG1, "digits-none-seed0: "), (FLEET, "")], ids=["alone", "fleet"])
def test_sigterm_while_training_exits_143_and_the_same_command_goes_on(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path, args: tuple[str, ...], who: str
) -> None:
    process = started(*args)
    assert process.stdout
    assert any("epoch 1/4" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    message = f"bayesnorm: {who}stopped by signal 15: the same command goes on\n"
    assert (process.returncode, err) == (143, message)
    assert [path.name for path in (tmp_path / "stopped").iterdir()] == ["runs"]
    begun = {path.name for path in (tmp_path / "stopped/runs").iterdir()}
    assert begun == {"digits-none-seed0", *(["digits-batch-seed0"] if args == FLEET else [])}
    process = started(*args)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    events = (tmp_path / "stopped/runs/digits-none-seed0/events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in events] == ["start", "stop", "start", "finish"]

    assert main(["reproduce", *FIG1, "--out", str(tmp_path / "whole")]) == 0
    stopped, whole = (json.loads((tmp_path / out / "fig1.json").read_text()) for out in ("stopped", "whole"))
    assert len({run["digest"] for run in whole["runs"].values()}) == 2
    for document in (stopped, whole):  # --out is part of a command
        assert all(run.pop("command") for run in document["runs"].values())
    assert stopped == whole


def test_figures_whose_runs_diverged_are_named_and_the_others_made(
    reproduce: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        PRESETS, "smoke", dataclasses.replace(TINY, by_norm={"none": {"lr": 1e30}, "batch": {"lr": 0.02}})
    )
    status, out, err = reproduce("fig1", "fig2", "--processes", "1", "--device", "cpu")
    assert status == 3
    assert "fig1: digits-none-seed0: diverged at step" in out
    assert "fig1 could not be made, as runs diverged; they would again: try another --set lr=NUMBER or" in err
    assert not (tmp_path / "paper-smoke" / "fig1.json").exists()
    assert (tmp_path / "paper-smoke" / "fig2.json").exists()


def test_figure_9_shows_a_run_that_diverged_up_to_there_and_names_it(
    reproduce: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = {"data": "strokes", "epochs": 2, "width": 0.25, "batch": 42, "lr": 0.003, "train_eval": 0}
    monkeypatch.setitem(PRESETS, "smoke", dataclasses.replace(TINY, cells=cells))
    assert reproduce("fig9", "--processes", "1", "--device", "cpu")[0] == 0
    whole = json.loads(Path("paper-smoke/fig9.json").read_text())
    assert whole["diverged"] == {}
    folder = RunFolder(tmp_path / "paper-smoke/runs/strokes-weight-seed0")
    folder.finish({"state": "diverged", "message": "diverged at step 2", "step": 2, "lr": 0.003})
    lines = folder.lines()
    (folder.path / "metrics.jsonl").write_text(json.dumps(lines[0]) + "\n")
    status, out, err = reproduce("fig9", "--processes", "1", "--device", "cpu")
    assert (status, "written: " in out) == (3, True)
    assert err.startswith("bayesnorm: strokes-weight-seed0 diverged, as the .json says")
    found = json.loads(Path("paper-smoke/fig9.json").read_text())
    name = "strokes-weight-seed0"
    assert found["diverged"] == {name: {"step": 2, "lr": 0.003, "message": "diverged at step 2"}}
    assert whole["runs"].keys() - found["runs"].keys() == {name}
    curves = found["measured"]["curves"]
    assert curves["weight"]["val_nll"] == [lines[0]["val_nll"]]
    assert {**curves, "weight": None} == {**whole["measured"]["curves"], "weight": None}
    numbers = found["measured"]["numbers"]
    assert numbers["weight, validation loss"] is numbers["weight, validation accuracy"] is None
    assert numbers["best by validation loss"] not in (None, "weight")


ROWS = Preset(
    "smoke",
    "one epoch of a network of a few channels",
    images={"data": "digits", "epochs": 1, "width": 0.02, "batch": 512, "train_eval": 0},
    cells={"data": "strokes"},
    by_norm={"none": {"lr": 0.01}, "batch": {"lr": 0.02}, "weight": {"lr": 0.005}, "analytic": {"lr": 0.01}},
    noise_batches=4,
)
METHODS = [
    *("none", "batch", "batch+projection"),
    *(f"{norm}{suffix}" for norm in ("weight", "analytic") for suffix in ("", "+projection", "+projection+noise")),
]


def test_the_table_has_a_row_of_every_method_and_seed(reproduce: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the five, then all eleven, then another seed of the five."""
    monkeypatch.setitem(PRESETS, "smoke", ROWS)

    def rows(*args: str) -> dict[str, list[int]]:
        status, _, err = reproduce("table1", "--fleet", "--device", "cpu", *args)
        assert (status, err) == (0, "")
        found = json.loads(Path("paper-smoke/table1.json").read_text())["rows"]
        return {row["method"]: row["seeds"] for row in found}

    five = {"none", "batch", "batch+projection", "weight+projection+bayes", "analytic+projection+bayes"}
    assert rows() == {method: [0] for method in five}
    assert rows("--all-methods") == {method: [0] for method in (*five, *METHODS)}
    again = rows("--seeds", "0,1")
    assert again == {method: [0, 1] if method in five else [0] for method in (*five, *METHODS)}
    assert rows("--seeds", "1") == {method: [1] for method in five}
    assert rows() == {method: [0] for method in (*five, *METHODS)}, "other seeds that are there do not count"
    found = json.loads(Path("paper-smoke/table1.json").read_text())
    assert found["measured"]["numbers"]["seeds"] == 1
    assert {about["seed"] for about in found["runs"].values()} == {0}


def test_a_wrong_id_beside_all_is_refused(reproduce: Call) -> None:
    status, _, err = reproduce("all", "fig99")
    assert (status, err.startswith("bayesnorm: unknown id 'fig99': choose fig1")) == (1, True)


def test_figure_a2_has_the_seeds_that_were_asked_for(reproduce: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "smoke", ROWS)
    status, _, err = reproduce("figA2", "--fleet", "--device", "cpu", "--seeds", "3")
    assert (status, err) == (0, "")
    found = json.loads(Path("paper-smoke/figA2.json").read_text())
    assert [list(curves) for curves in found["measured"]["panels"].values()] == [["seed 0", "seed 3"]] * 2
    assert sorted(run["seed"] for run in found["runs"].values()) == [0, 0, 3, 3]


def test_settings_of_ones_own_do_not_collide(reproduce: Call) -> None:
    for more in ((), ("--set", "kl_factor=2", "--set", "momentum=0.8"), ("--set", "checkpoint-steps=5")):
        status, out, err = reproduce(*FIG1, *more)
        assert (status, err) == (0, "")
    assert "epoch 1/1" not in out, "nothing that changes a result was set"
    folder, tag = Path("paper-smoke"), "kl_factor=2,momentum=0.8"
    assert {path.name for path in folder.iterdir()} == {"fig1.svg", "fig1.png", "fig1.json", "runs", tag}
    assert {path.name for path in (folder / "runs").iterdir()} == {
        f"digits-{method}{special}-seed0" for method in ("none", "batch") for special in ("", f"-{tag}")
    }
    documents = [json.loads((place / "fig1.json").read_text()) for place in (folder, folder / tag)]
    assert [document["set"] for document in documents] == [
        {"checkpoint_steps": 5},
        {"kl_factor": 2.0, "momentum": 0.8},
    ]


def test_a_setting_of_one_method_is_that_of_its_runs_alone(reproduce: Call) -> None:
    status, _, err = reproduce(*FIG1, "--set", "lr=0.02", "--set", "batch:lr=0.03")
    assert (status, err) == (0, "")
    document = json.loads(Path("paper-smoke/batch.lr=0.03,lr=0.02/fig1.json").read_text())
    assert document["set"] == {"lr": 0.02, "batch:lr": 0.03}
    name = "digits-{}-batch.lr=0.03,lr=0.02-seed0"
    assert {run: of["lr"] for run, of in document["runs"].items()} == {
        name.format("none"): 0.02,
        name.format("batch"): 0.03,
    }


@pytest.mark.parametrize("how", [("--fleet",), ("--processes", "1"), ("--processes", "2")])
def test_a_time_limit_exits_143_and_the_same_command_goes_on(reproduce: Call, how: tuple[str, ...]) -> None:
    args = ("fig1", "--device", "cpu", "--preset", "smoke", "--set", "epochs=2", *how)
    status, _, err = reproduce(*args, "--stop-after", "0")
    assert status == 143
    assert err.endswith("stopped by the time limit: the same command goes on\n")
    assert err.count("\n") == 1
    status, out, err = reproduce(*args, "--stop-after", "100")
    assert (status, err) == (0, "")
    assert "from step 1" in out or how == ("--processes", "2"), "there it may have stopped before its first step"
    assert Path("paper-smoke/epochs=2/fig1.json").exists()


def test_a_seed_that_diverges_is_named_and_the_table_made(
    reproduce: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PRESETS, "smoke", dataclasses.replace(ROWS, by_norm={**ROWS.by_norm, "none": {"lr": 1e-2}}))
    assert reproduce("table1", "--fleet", "--device", "cpu")[0] == 0
    folder = RunFolder(tmp_path / "paper-smoke/runs/digits-none-seed1")
    folder.path.mkdir()
    folder.finish({"state": "diverged", "message": "diverged at step 3", "step": 3, "lr": 0.01})
    status, out, err = reproduce("table1", "--fleet", "--device", "cpu", "--seeds", "0,1")
    assert (status, "written: " in out) == (3, True)
    assert err == (
        "bayesnorm: digits-none-seed1 diverged, as the .json says: no numbers; they would again: "
        "try another --set lr=NUMBER or --set clip=NUMBER\n"
    )
    found = json.loads(Path("paper-smoke/table1.json").read_text())
    assert found["diverged"] == {"digits-none-seed1": "diverged at step 3"}
    assert [row["seeds"] for row in found["rows"]] == [[0], *[[0, 1]] * 4]
    assert list(found["measured"]["seeds"].values()) == [1, 2, 2, 2, 2], "figures are means over what is trained"
    for row, shown in zip(found["rows"], found["measured"]["rows"].values(), strict=True):
        assert shown["accuracy"] == pytest.approx(sum(row["accuracy"]) / len(row["accuracy"]))
        assert shown["NLL single"] == pytest.approx(sum(row["nll"]) / len(row["nll"]))
