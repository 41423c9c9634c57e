"""R3: damage is named, never loaded; the previous good checkpoint is used, with a warning."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from promises.runs import SEARCH, TRAIN, Commands, assert_same, checkpoints, state, tree

from bayesnorm.train import durable

Damage = Callable[[bytes], bytes]
Copy = Callable[[Path], Path]


def flip(where: float) -> Damage:
    """One bit of the byte at that fraction of the file."""

    def damaged(content: bytes) -> bytes:
        place = round(where * (len(content) - 1))
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return damaged


DAMAGE: dict[str, Damage] = {
    "first byte": flip(0),
    "a byte in the middle": flip(0.5),
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}
FINISHED = [
    *("config.json", "metrics.jsonl", "result.json", "lr_search.json", "evaluation-test.json"),
    *("checkpoints/save-000002.json", "checkpoints/save-000002.safetensors"),
]
INTERRUPTED = ["config.json", "metrics.jsonl", "checkpoints/save-000003.json", "checkpoints/save-000003.safetensors"]
BACK = ["config.json", "metrics.jsonl", "result.json", "lr_search.json", "evaluation-test.json"]
"""Files that have their old content again after a resumption."""


def test_these_are_all_files_of_a_run(searched: Path, interrupted: Path) -> None:
    older = {f"checkpoints/save-00000{n}.{kind}" for n in (1, 2) for kind in ("json", "safetensors")}
    assert set(tree(searched)) - {"events.jsonl"} - older <= {*FINISHED, *_figures(searched)}
    assert set(FINISHED) <= set(tree(searched))
    assert set(tree(interrupted)) - {"events.jsonl"} - older == set(INTERRUPTED)


def _figures(folder: Path) -> set[str]:
    return {name for name in tree(folder) if name.startswith("figures/")}


@pytest.mark.parametrize("name", FINISHED)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_a_finished_run(command: Commands, searched: Path, copy: Copy, name: str, damage: str) -> None:
    folder = copy(searched)
    path = folder / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    done = command("train", "--samples", "0", "--out", folder, "--resume")
    assert done.status == 0, done.err
    assert any(str(path) in line for line in done.warnings), done.err
    assert_same(folder, searched)
    assert [file for file in BACK if (folder / file).read_bytes() != (searched / file).read_bytes()] == []
    if damage == "half":
        again = command("train", "--samples", "0", "--out", folder, "--resume")
        assert (again.status, again.err) == (0, ""), "the damage is mended"


@pytest.mark.parametrize("name", ["config.json", "checkpoints/save-000002.json"])
def test_every_byte_counts(searched: Path, name: str) -> None:
    content = (searched / name).read_bytes()
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(durable.DamagedError, match="some file is damaged"):
            durable.unsealed(changed, "some file")


@pytest.mark.parametrize("name", FINISHED)
def test_a_file_of_a_finished_run_is_gone(command: Commands, searched: Path, copy: Copy, name: str) -> None:
    folder = copy(searched)
    (folder / name).unlink()
    assert command(*SEARCH, "--out", folder, "--resume").status == 0
    assert_same(folder, searched)
    assert (folder / "config.json").read_bytes() == (searched / "config.json").read_bytes()


@pytest.mark.parametrize("name", INTERRUPTED)
def test_damage_of_an_interrupted_run(
    command: Commands, reference: Path, interrupted: Path, copy: Copy, name: str
) -> None:
    folder = copy(interrupted)
    path = folder / name
    path.write_bytes(flip(0.4)(path.read_bytes()))
    done = command(*TRAIN, "--out", folder, "--resume")
    assert done.status == 0
    assert any(str(path) in line for line in done.warnings), done.err
    assert_same(folder, reference)


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_file_of_an_interrupted_run_is_gone(
    command: Commands, reference: Path, interrupted: Path, copy: Copy, name: str
) -> None:
    folder = copy(interrupted)
    (folder / name).unlink()
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


def test_tensors_of_another_save_do_not_pass_for_these(
    command: Commands, reference: Path, interrupted: Path, copy: Copy
) -> None:
    """Whole, and of the right size: the checksum is of this content."""
    folder = copy(interrupted)
    older, last = (manifest.with_suffix(".safetensors") for manifest in checkpoints(folder))
    last.write_bytes(older.read_bytes())
    done = command(*TRAIN, "--out", folder, "--resume")
    assert any(str(last) in line and "step 6" in line for line in done.warnings), done.err
    assert_same(folder, reference)


def test_events_may_be_anything(command: Commands, reference: Path, interrupted: Path, copy: Copy) -> None:
    folder = copy(interrupted)
    (folder / "events.jsonl").write_bytes(b"\xff\x00{")
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (["checkpoints/save-*"], "had been saved, but there is no checkpoint"),
        (["checkpoints/save-*.json"], "save-000003.safetensors cannot be used without save-000003.json"),
        (["checkpoints/*2.*", "checkpoints/*3.*", "checkpoints/*1.json"], "had been saved, but there is no checkpoint"),
        (["config.json", "checkpoints/save-*.json"], "save-000003.safetensors cannot be used without save-000003.json"),
        (["metrics.jsonl", "checkpoints/save-*.json"], "save-000003.safetensors cannot be used"),
    ],
)
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(
    command: Commands, reference: Path, interrupted: Path, copy: Copy, gone: list[str], said: str
) -> None:
    """As when not all files were copied to another machine: what is left is not touched, and what is missing works."""
    folder = copy(interrupted)
    removed = {path for pattern in gone for path in folder.glob(pattern)}
    for path in removed:
        path.unlink()
    before = tree(folder)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, tree(folder)) == (1, before)
    assert said in done.error
    for path in removed:
        path.write_bytes((interrupted / path.relative_to(folder)).read_bytes())
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


def test_a_manifest_of_the_first_save_that_is_gone(
    command: Commands, reference: Path, interrupted: Path, copy: Copy
) -> None:
    """In the first epoch, of which no line tells, the diary does."""
    folder, fault = copy(interrupted), {"kind": "step", "step": 5, "signals": [9]}
    for path in [*(folder / "checkpoints").iterdir(), *folder.glob("*.json*")]:
        path.unlink()
    assert command(*TRAIN, "--out", folder, faults=[fault]).status == -9
    (manifest,) = (folder / "checkpoints").glob("*.json")
    content = manifest.read_bytes()
    manifest.unlink()
    before = tree(folder)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, tree(folder)) == (1, before)
    assert "save-000001.safetensors cannot be used without save-000001.json" in done.error
    manifest.write_bytes(content)
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


def test_the_last_manifest_is_gone(command: Commands, reference: Path, interrupted: Path, copy: Copy) -> None:
    """An interrupted save would look so, but the diary says that it was not: a warning, and the one before is used."""
    folder = copy(interrupted)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "stop", "step": 9}\n')
    checkpoints(folder)[-1].unlink()
    done = command(*TRAIN, "--out", folder, "--resume")
    assert done.status == 0
    assert any("had been saved at step 9" in line and "from step 6" in line for line in done.warnings), done.err
    assert_same(folder, reference)


def test_a_line_that_a_kill_tore_does_not_swallow_the_next(
    command: Commands, reference: Path, interrupted: Path, copy: Copy
) -> None:
    folder = copy(interrupted)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "ti')
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    lines = (folder / "events.jsonl").read_text().splitlines()
    torn = lines.index('{"event": "ti')
    assert [json.loads(line)["event"] for line in lines[torn + 1 :]] == ["start", "finish"]
    assert_same(folder, reference)


@pytest.mark.parametrize("kinds", [("json", "safetensors"), ("safetensors", "json")])
def test_no_generation_is_intact(
    command: Commands, searched: Path, interrupted: Path, copy: Copy, kinds: tuple[str, str]
) -> None:
    for run in (searched, interrupted):
        folder = copy(run)
        damaged = [path.with_suffix(f".{kind}") for path, kind in zip(checkpoints(folder), kinds, strict=True)]
        for path in damaged:
            path.write_bytes(flip(0.5)(path.read_bytes()))
        before = tree(folder)
        for done in (command("train", "--out", folder, "--resume"), command("eval", folder)):
            assert done.status == 1
            assert all(str(path) in done.error for path in damaged)
        listed = command("runs", folder)
        assert (listed.status, "damaged" in listed.out) == (0, True)
        assert tree(folder) == before


def test_damaged_configuration_before_the_first_checkpoint(command: Commands, tmp_path: Path) -> None:
    """Nothing is left that could tell what the run was."""
    folder = tmp_path / "run"
    assert command(*TRAIN, "--out", folder, faults=[{"kind": "step", "step": 1, "signals": [9]}]).status == -9
    path = folder / "config.json"
    path.write_bytes(flip(0.5)(path.read_bytes()))
    before = tree(folder)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, str(path) in done.error, tree(folder)) == (1, True, before)


def test_eval_and_runs_use_the_generation_before(command: Commands, searched: Path, copy: Copy) -> None:
    folder = copy(searched)
    last = checkpoints(folder)[-1].with_suffix(".safetensors")
    last.write_bytes(flip(0.5)(last.read_bytes()))
    done = command("eval", folder, "--samples", "0")
    assert done.status == 0
    assert str(last) in done.warnings[0]
    assert "step 3" in done.out
    listed = command("runs", folder)
    assert (listed.status, "Traceback" in listed.err) == (0, False)


def test_two_intact_generations_are_kept_after_damage(
    command: Commands, reference: Path, interrupted: Path, copy: Copy
) -> None:
    """The one that was gone back to is not dropped for the damaged one."""
    folder = copy(interrupted)
    last = checkpoints(folder)[-1].with_suffix(".safetensors")
    last.write_bytes(flip(0.5)(last.read_bytes()))
    # From step 6: a save after step 9, then killed.
    fault = {"kind": "step", "step": 5, "signals": [9]}
    assert command(*TRAIN, "--out", folder, "--resume", faults=[fault]).status == -9
    assert json.loads(checkpoints(folder)[-1].read_text())["step"] == 9
    newest = checkpoints(folder)[-1].with_suffix(".safetensors")
    newest.write_bytes(flip(0.5)(newest.read_bytes()))
    done = command(*TRAIN, "--out", folder, "--resume")
    assert done.status == 0, done.err
    assert_same(folder, reference)
    assert state(folder)["step"] == 12
