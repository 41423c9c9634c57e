"""The example as a program of its own, and that both of its networks learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bayesnorm

SCRIPT = Path(__file__).parents[2] / "examples" / "segment_batch_of_one.py"
LINE = re.compile(r"(.*): (\d+\.\d\d) % of the pixels, NLL (\d+\.\d{3}), ECE (\d\.\d{3})")


def example(*args):
    environment = {**os.environ, "PYTHONPATH": str(Path(bayesnorm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(SCRIPT), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_both_networks_learn_from_one_image_per_step_and_the_maps_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    done = example(tmp_path / "maps.png", "--steps", 100, "--samples", 5)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert [match.group(1) for match in found] == ["BatchNorm, one image per step", "analytic norm, Bayes, 5 draws"]
    for match in found:
        accuracy, nll, ece = map(float, match.groups()[1:])
        assert accuracy > 93  # a sixth of the pixels is stroke
        assert nll < 0.2
        assert ece < 0.1
    assert last == f"drawn: {tmp_path / 'maps.png'}"
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--steps", 0], "--steps"), (["--samples", 0], "--samples"), (["--lr", 0], "--lr"), (["--lr", "nan"], "--lr")],
)
def test_what_cannot_be_is_said_in_one_line(options, words, tmp_path):
    done = example(tmp_path / "maps.png", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_is_not_there_is_named_before_anything_is_trained(tmp_path):
    done = example(tmp_path / "no" / "maps.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path / "no") in done.stderr
