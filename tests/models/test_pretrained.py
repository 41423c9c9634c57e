"""Pretrained networks, as they are loaded by name."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from published import NAME, published
from safetensors.torch import save
from torch import nn

import bayesnorm
from bayesnorm import Analytic, Batch, Bayes, Point
from bayesnorm._files import sealed, sha256, unsealed
from bayesnorm.errors import DataError
from bayesnorm.models import available, load
from bayesnorm.models.described import MODELS, Description
from bayesnorm.models.pretrained import WEIGHTS, Pretrained, assemble

RECORDS = Path(__file__).parents[2] / "results" / "cifar10" / "records"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The run, and the folder of what was published of it."""
    root = tmp_path_factory.mktemp("pretrained")
    return published(root)[0], root / "weights"


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "weights")
    return tmp_path / "weights"


def card_of(folder):
    return unsealed((folder / f"{NAME}.json").read_bytes())


def test_a_network_loads_by_name_and_is_ready(made):
    run, folder = made
    before = torch.get_rng_state()
    net = load(NAME, folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert available(folder) == [NAME]
    assert isinstance(net, Pretrained)
    assert (net.name, net.classes, net.image_size) == (NAME, tuple("0123456789"), (1, 8, 8))
    assert not any(module.training for module in net.modules())
    assert all(value.dtype != torch.float16 for value in net.state_dict().values())
    for name, (mean, sigma) in bayesnorm.posterior(run.net).items():
        found = bayesnorm.posterior(net)[f"net.{name}"]
        assert torch.equal(found.mean, mean)
        assert torch.equal(found.sigma, sigma)


def test_it_is_as_accurate_as_the_run(made):
    run, folder = made
    net, test = load(NAME, folder), run.data.test
    out = net.predict(test.images, samples=10)
    wrong = (out.probs.argmax(1) != test.targets).float().mean().item()
    stated = net.card["metrics"]["mc10"]["accuracy"]
    assert stated > 0.8
    assert abs(1 - wrong - stated) <= 2 / len(test)  # two images on the border between classes
    assert bool((out.mutual_info > 0).any())


def test_images_are_standardized_as_in_training(made):
    run, folder = made
    net, images = load(NAME, folder), run.data.test.images[:5]
    assert torch.equal(net.standardized(images), run.data.standardized(images))
    assert torch.equal(net.standardized(images[0]), run.data.standardized(images[:1]))
    expected = bayesnorm.predict(net.net, run.data.standardized(images), samples=3)
    assert torch.equal(net.predict(images, samples=3).probs, expected.probs)
    by_moments = bayesnorm.predict(net.net, run.data.standardized(images), method="moments")
    assert torch.equal(net.predict(images, method="moments").probs, by_moments.probs)


def test_a_network_from_the_meta_device_standardizes_as_its_card_says(made):
    run, folder = made
    net, images = load(NAME, folder), run.data.test.images[:5]
    other = load(NAME, folder).to("meta").to_empty(device="cpu")
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.predict(images, samples=3).probs, net.predict(images, samples=3).probs)
    assert net.bfloat16().mean.dtype == torch.bfloat16


def test_bytes_go_from_black_to_white(made):
    run, folder = made
    net = load(NAME, folder)
    black, white = (net.standardized(torch.full((1, 8, 8), value, dtype=torch.uint8)) for value in (0, 255))
    assert torch.equal(black, run.data.standardized(torch.zeros(1, 1, 8, 8)))
    torch.testing.assert_close(white, run.data.standardized(torch.full((1, 1, 8, 8), 16.0)))


def test_bytes_span_the_range_of_the_data_set_also_where_its_black_is_not_zero():
    about = {"size": [1, 1, 2], "bytes": False, "range": [-1.0, 1.0], "mean": [0.5], "std": [2.0]}
    net = Pretrained(nn.Identity(), {"name": "x", "input": about, "per_pixel": False})
    found = net.standardized(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    assert found.tolist() == [[[[-0.75, 0.25]]]]


def test_everything_of_the_package_works_on_it(made):
    run, folder = made
    net, x = load(NAME, folder), run.data.standardized(run.data.test.images[:4])
    single = bayesnorm.predict(net, x, samples=0)
    torch.testing.assert_close(net(x).exp(), single.probs)
    with bayesnorm.sampling(net):
        assert not torch.equal(net(x), net(x))
    torch.testing.assert_close(bayesnorm.fold(net)(x), net(x))
    assert bayesnorm.kl(net).item() == pytest.approx(bayesnorm.kl(run.net).item(), rel=1e-5)
    assert net.double().predict(run.data.test.images[:1]).probs.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(8, 8, dtype=torch.uint8), r"images of shape \(8, 8\): small-digits takes \(1, 8, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"images of shape \(1, 3, 8, 8\)"),
        (torch.zeros(2, 1, 9, 8), r"\(2, 1, 9, 8\): .*resize them"),
        (torch.zeros(1, 8, 8, dtype=torch.int64), r"images of torch\.int64: pass torch\.uint8"),
    ],
)
def test_other_images_are_refused(images, words, made):
    with pytest.raises(ValueError, match=words):
        load(NAME, made[1]).predict(images)


def test_bytes_are_no_input_of_the_network_itself(made):
    with pytest.raises(ValueError, match=r"images of torch\.uint8: call predict\(\)"):
        load(NAME, made[1])(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))


ALONE = """
import sys
sys.modules.update(dict.fromkeys(("safetensors", "numpy", "PIL", "filelock", "typer", "sklearn")))
import torch, bayesnorm
out = bayesnorm.models.load(sys.argv[1], sys.argv[2]).predict(torch.zeros(1, 8, 8, dtype=torch.uint8), 2)
print(round(out.probs.sum().item(), 4), bool(out.entropy > 0))
"""


def test_it_needs_torch_alone(made):
    command = [sys.executable, "-c", ALONE, NAME, str(made[1])]
    place = {"PYTHONPATH": str(Path(bayesnorm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=place, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "1.0 True\n"), done.stderr


# What goes wrong is one line that says what to do.


def refused(words, *args):
    """Whether loading ends with one line that says this."""
    with pytest.raises(DataError) as caught:
        load(*args)
    return re.search(words, str(caught.value)) and "\n" not in str(caught.value)


def test_an_unknown_name(folder, tmp_path):
    assert refused(rf"weights has no pretrained network 'other': choose {NAME}", "other", folder)
    assert refused("has no pretrained network 'x': train one and `bayesnorm publish` it", "x", tmp_path / "nowhere")
    assert refused("this version of bayesnorm has no pretrained network 'no-such-network'", "no-such-network")
    assert refused("has no pretrained network", f"../weights/{NAME}", folder)
    assert available(tmp_path / "nowhere") == []


def test_a_missing_file(folder):
    (folder / f"{NAME}.safetensors").unlink()
    assert refused(rf"{NAME}\.safetensors cannot be read \(No such file.*\): install bayesnorm again", NAME, folder)


@pytest.mark.parametrize("place", [0, 9, 0.3, 0.6, -1])
@pytest.mark.parametrize("end", ["safetensors", "json"])
def test_one_flipped_bit_is_found(place, end, folder):
    path = folder / f"{NAME}.{end}"
    content = bytearray(path.read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 4
    path.write_bytes(content)
    assert refused(
        rf"{NAME}\.{end} is damaged, .*: install bayesnorm again, or repeat `bayesnorm publish`", NAME, folder
    )


def test_the_weights_of_another_network(folder):
    content = save({"weight": torch.zeros(3)})
    (folder / f"{NAME}.safetensors").write_bytes(content)
    assert refused("is damaged, its SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}", NAME, folder)
    card = card_of(folder)
    card["file"]["sha256"] = sha256(content)
    (folder / f"{NAME}.json").write_bytes(sealed(card))
    assert refused("does not fit the network of this version of bayesnorm: .*Missing key", NAME, folder)


def test_another_format(folder):
    (folder / f"{NAME}.json").write_bytes(sealed({**card_of(folder), "format": 2}))
    assert refused(r"json has format 2, this bayesnorm reads 1: use the other version", NAME, folder)


# Networks of every kind.


def card_for(description, size, **more):
    mean = [0.5] * size[0]
    about = {"size": list(size), "bytes": True, "range": [0.0, 255.0], "mean": mean, "std": mean}
    return {"name": "x", "network": description.as_dict(), "input": about, "classes": ["a", "b"], **more}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("norm", "scale"),
    [(None, Point()), (Batch(), Bayes()), (Analytic("patch"), Bayes(stochastic_bias=True)), (Analytic(), Point())],
    ids=str,
)
def test_every_network_comes_back(model, norm, scale):
    options = {"width": 0.125, "num_classes": 2, "in_channels": 3}
    description = Description(model, options, norm, scale)
    example = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = description.build((torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 3.0])), example).eval()
    if isinstance(norm, Batch):
        net.train()(example)
        net.eval()
    pixels = model in ("cell-net", "unet")
    card = json.loads(json.dumps(card_for(description, (3, 32, 32), per_pixel=pixels)))
    found = assemble(card, save(net.state_dict()))
    images = (example * 50).clamp(0, 255).to(torch.uint8)
    images = images[..., :16] if pixels else images
    x = (images.float() - 0.5) / 0.5
    expected = bayesnorm.predict(net, x, samples=3)
    assert torch.equal(found.predict(images, samples=3).probs, expected.probs)
    with pytest.raises(ValueError, match=r"images of torch\.float32: pass torch\.uint8"):
        found.predict(images.float())


def test_what_comes_with_the_package_is_whole():
    assert available() == sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))
    for name in available():
        net = load(name)
        image = torch.randint(0, 256, net.image_size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        assert net.predict(image, samples=2).probs.isfinite().all()
        assert len(net.classes) == net.card["network"]["options"]["num_classes"]


def test_the_cifar10_network_is_that_of_its_record():
    """What its card says of training and test is what the run said: the checksum of its state, every figure."""
    card = load("allcnn-cifar10").card
    record = RECORDS / f"cifar10-{card['training']['method']}-seed{card['training']['seed']}"
    result, judged = (json.loads((record / f"{name}.json").read_text()) for name in ("result", "evaluation-test"))
    assert (card["training"]["digest"], card["training"]["steps"]) == (result["digest"], result["steps"])
    for way, metrics in card["metrics"].items():
        assert metrics == judged["metrics"][way]
    assert set(card["metrics"]) == {"single", "moments", "mc10", "mc30"}
