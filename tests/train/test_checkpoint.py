import json
import math

import pytest
import torch

from bayesnorm.errors import RunError
from bayesnorm.train import checkpoint, durable
from bayesnorm.train.checkpoint import Checkpoint, clean, latest, load, save


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 3, generator=generator)
    return {
        "net.weight": weight,
        "net.tied": weight,
        "net.transposed": weight.t(),
        "net.half": weight.to(torch.bfloat16),
        "net.double": weight.double(),
        "net.channels_last": torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "count": torch.tensor(2**62 + 1),
        "flags": torch.tensor([True, False]),
        "special": torch.tensor([math.nan, math.inf, -0.0, 1e-45]),
        "generator.cpu": torch.get_rng_state(),
    }


def made(step, seed=0):
    return Checkpoint(step, {"epoch": 1, "sums": {"loss": 0.1 + 0.2}}, tensors(seed), {"config": {"lr": 1e-3}})


def test_everything_comes_back_bitwise(tmp_path):
    original = made(7)
    path = save(tmp_path / "checkpoints", original)
    found = load(tmp_path / "checkpoints")
    assert (found.step, found.counters, found.about) == (7, original.counters, original.about)
    assert set(found.tensors) == set(original.tensors)
    for name, value in original.tensors.items():
        assert found.tensors[name].dtype == value.dtype
        assert found.tensors[name].shape == value.shape
        bits = [t.contiguous().flatten().view(torch.uint8) for t in (found.tensors[name], value)]
        assert torch.equal(*bits), name
    assert path == latest(tmp_path / "checkpoints")


def test_saving_does_not_hold_on_to_the_tensors(tmp_path):
    original = made(1)
    expected = original.tensors["net.weight"].clone()
    save(tmp_path, original)
    original.tensors["net.weight"].zero_()
    assert torch.equal(load(tmp_path).tensors["net.weight"], expected)


def test_parameters_that_want_a_gradient_are_saved(tmp_path):
    save(tmp_path, Checkpoint(0, {}, {"p": torch.nn.Parameter(torch.ones(3))}, {}))
    assert not load(tmp_path).tensors["p"].requires_grad


def test_the_last_two_are_kept(tmp_path):
    for step in (3, 1, 9, 4):
        save(tmp_path, made(step))
    assert len(list(tmp_path.glob("*.json"))) == len(list(tmp_path.glob("*.safetensors"))) == 2
    assert load(tmp_path).step == 4
    latest(tmp_path).unlink()
    assert load(tmp_path).step == 9, "in the order saved"


def test_nothing_saved_is_none(tmp_path):
    assert load(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    assert load(tmp_path / "nowhere") is None


def damaged_file(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize(
    "harm", [damaged_file, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes()[:-1])]
)
def test_a_damaged_one_is_named_and_the_one_before_it_used(suffix, harm, tmp_path):
    save(tmp_path, made(1))
    path = save(tmp_path, made(2)).with_suffix(suffix)
    harm(path)
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged.*going back to step 1"):
        found = load(tmp_path)
    assert found.step == 1


def test_tensors_that_are_gone_are_damage(tmp_path):
    save(tmp_path, made(1))
    save(tmp_path, made(2)).with_suffix(".safetensors").unlink()
    with pytest.warns(UserWarning, match="is missing; going back to step 1"):
        assert load(tmp_path).step == 1


def test_if_none_is_intact_it_says_so(tmp_path):
    for step in (1, 2):
        damaged_file(save(tmp_path, made(step)))
    with pytest.raises(RunError, match="no checkpoint is intact") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("is damaged") == 2


def test_the_next_save_never_takes_the_name_of_a_damaged_one(tmp_path):
    save(tmp_path, made(1))
    broken = save(tmp_path, made(2))
    damaged_file(broken)
    assert save(tmp_path, made(3)).name > broken.name
    assert load(tmp_path).step == 3


def test_another_format_names_the_version(tmp_path):
    path = save(tmp_path, made(1))
    document = json.loads(path.read_text())
    del document["sha256"]
    path.write_bytes(durable.sealed({**document, "format": checkpoint.FORMAT + 1}))
    with pytest.raises(RunError, match="has format 2, this version of bayesnorm reads format 1"):
        load(tmp_path)


def test_tensors_that_are_none_are_damage_even_with_the_right_checksum(tmp_path):
    path = save(tmp_path, made(1))
    content = b"not safetensors"
    document = json.loads(path.read_text())
    del document["sha256"]
    document["file"] |= {"sha256": durable.sha256(content), "bytes": len(content)}
    path.write_bytes(durable.sealed(document))
    path.with_suffix(".safetensors").write_bytes(content)
    with pytest.raises(RunError, match="no checkpoint is intact"):
        load(tmp_path)


def test_clean_removes_what_has_no_manifest(tmp_path):
    kept = save(tmp_path, made(1))
    (tmp_path / "save-000009.safetensors").write_bytes(b"half")
    (tmp_path / ".save-000009.json.1.tmp").write_bytes(b"half")
    clean(tmp_path)
    assert sorted(tmp_path.iterdir()) == [kept, kept.with_suffix(".safetensors")]


def test_files_of_others_are_passed_over(tmp_path):
    (tmp_path / "save-copy.json").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, made(1))
    clean(tmp_path)
    assert load(tmp_path).step == 1
    assert {"save-copy.json", "notes.txt"} <= {path.name for path in tmp_path.iterdir()}


def test_more_than_a_million_saves_keep_their_order(tmp_path):
    path = save(tmp_path, made(1))
    for suffix in (".json", ".safetensors"):
        path.with_suffix(suffix).rename(tmp_path / f"save-999999{suffix}")
    document = json.loads((tmp_path / "save-999999.json").read_text())
    del document["sha256"]
    document["file"]["name"] = "save-999999.safetensors"
    (tmp_path / "save-999999.json").write_bytes(durable.sealed(document))
    assert save(tmp_path, made(2)).name == "save-1000000.json"
    assert load(tmp_path).step == 2
