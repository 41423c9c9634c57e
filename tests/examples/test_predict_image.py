"""The example as a program of its own, on images that are drawn here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from published import NAME, published

import bayesnorm

SCRIPT = Path(__file__).parents[2] / "examples" / "predict_image.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("example")
    return published(root)[0].data, root / "weights"


def example(*args):
    environment = {**os.environ, "PYTHONPATH": str(Path(bayesnorm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(SCRIPT), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def drawn(path, pixels, mode="L", wide=1.0):
    """An image file of digits' pixels (8, 8), each 16 pixels in size; ``wide``: black on the left and the right."""
    image = pytest.importorskip("PIL.Image")
    values = (pixels / 16 * 255).round().to(torch.uint8).repeat_interleave(16, 0).repeat_interleave(16, 1)
    small = image.frombytes("L", (128, 128), bytes(values.flatten().tolist()))
    canvas = image.new("L", (int(128 * wide), 128))
    canvas.paste(small, ((canvas.width - 128) // 2, 0))
    canvas.convert(mode).save(path)
    return path


@pytest.mark.parametrize(("mode", "wide"), [("L", 1.0), ("RGB", 2.0), ("P", 1.5)])
def test_it_says_what_the_library_says(mode, wide, made, tmp_path):
    data, folder = made
    net = bayesnorm.models.load(NAME, folder)
    path = drawn(tmp_path / "digit.png", data.test.images[0, 0], mode, wide)
    done = example(path, "--name", NAME, "--folder", folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    out = net.predict(
        data.test.images[0], samples=net.card["accept"]["samples"]
    )  # the file has it in 255 steps instead of 16
    assert lines[0].split()[0] == net.classes[out.probs.argmax()]
    shown = [float(line.split()[1]) for line in lines[:3]]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == pytest.approx(100 * out.probs.max().item(), abs=5)
    entropy, mutual = map(float, re.findall(r"\d+\.\d+", lines[3]))
    assert entropy == pytest.approx(out.entropy.item(), abs=0.1)
    assert 0 <= mutual <= entropy
    assert lines[4].startswith("accept: " if entropy <= net.threshold else "reject: ")


@pytest.mark.parametrize("samples", [0, 2])
def test_the_threshold_is_not_used_for_other_draws(samples, made, tmp_path):
    data, folder = made
    path = drawn(tmp_path / "digit.png", data.test.images[0, 0])
    done = example(path, "--name", NAME, "--folder", folder, "--samples", samples)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("no advice: give a --threshold (what the network has, it has for 10")


def test_the_threshold_decides(made, tmp_path):
    data, folder = made
    path = drawn(tmp_path / "digit.png", data.test.images[0, 0])
    for threshold, word in ((3, "accept: "), (0, "reject: ask somebody else (threshold of the entropy 0.000)")):
        done = example(path, "--name", NAME, "--folder", folder, "--threshold", threshold)
        assert done.returncode == 0
        assert done.stdout.splitlines()[-1].startswith(word)


def said(done):
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_network_that_is_not_there_is_said_in_one_line(tmp_path):
    path = drawn(tmp_path / "digit.png", torch.zeros(8, 8))
    assert "this version of bayesnorm has no pretrained network 'no-such-network'" in said(
        example(path, "--name", "no-such-network")
    )


def test_without_options_it_takes_the_network_that_comes_with_the_package(tmp_path):
    done = example(drawn(tmp_path / "grey.png", torch.full((8, 8), 8.0)), "--samples", 2)
    assert (done.returncode, done.stderr) == (0, "")
    classes = bayesnorm.models.load("allcnn-cifar10").classes
    assert {line.split()[0] for line in done.stdout.splitlines()[:3]} <= set(classes)


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_file_that_is_no_image_is_named(content, made, tmp_path):
    path = tmp_path / "broken.png"
    if content is not None:
        path.write_bytes(content)
    assert "broken.png: " in said(example(path, "--name", NAME, "--folder", made[1]))
