import json
import shutil

import pytest
import torch
from drawn_cells import draw_cells
from small_data import made_up, network

from bayesnorm.errors import RunError
from bayesnorm.train import Config, Recipe, fit, load
from bayesnorm.train.durable import sealed

CONFIG = Config(epochs=1, batch=16, lr=0.02, train_eval=0)


def images(root, seed=0):
    """A folder of 2 x 20 small images."""
    image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(seed)
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(20):
            values = torch.randint(0, 256, (64,), generator=generator, dtype=torch.uint8)
            image.frombytes("L", (8, 8), bytes(values.tolist())).save(root / name / f"{number:02}.png")
    return str(root)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run on a folder of images, with what fit returned."""
    root = tmp_path_factory.mktemp("load")
    recipe = Recipe("folder", images(root / "images"), norm="analytic", width=0.0625, padding="same")
    data = recipe.load()
    run = fit(recipe.build(data, CONFIG.seed), data, CONFIG, out=root / "run", recipe=recipe.as_dict())
    return root, recipe, data, run


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "all")
    return tmp_path / "all"


def test_a_run_comes_back_as_it_ended(made):
    root, recipe, data, run = made
    found = load(root / "run")
    assert found.recipe == recipe
    assert found.config == CONFIG
    assert (found.step, found.history) == (2, run.history)
    assert found.result.items() >= run.result.items()
    assert not found.net.training
    assert found.data.digest() == data.digest()
    expected = run.net.state_dict()
    assert list(found.net.state_dict()) == list(expected)
    for name, value in found.net.state_dict().items():
        assert torch.equal(value, expected[name]), name
    x = data.standardized(data.test.images)
    assert torch.equal(found.net(x), run.net(x))


def test_loading_writes_nothing(copied):
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in copied.rglob("*") if path.is_file()}
    load(str(copied / "run"), str(copied / "images"))
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in copied.rglob("*") if path.is_file()}
    assert after == before


def test_data_that_was_moved_is_found_by_its_new_place(copied):
    (copied / "images").rename(copied / "elsewhere")
    about = json.loads((copied / "run" / "config.json").read_text())
    del about["sha256"]
    about["recipe"]["directory"] = str(copied / "images")
    (copied / "run" / "config.json").write_bytes(sealed(about))
    with pytest.raises(ValueError, match="is not there: name its place with --dir"):
        load(copied / "run")
    assert load(copied / "run", str(copied / "elsewhere")).recipe.directory == str(copied / "elsewhere")


def test_other_data_is_refused(copied, tmp_path):
    other = images(tmp_path / "other", seed=1)
    with pytest.raises(RunError, match=r"was trained on other data than what .*other holds now"):
        load(copied / "run", other)


def test_a_run_made_from_python_is_refused(tmp_path):
    fit(network("weight"), made_up(), CONFIG, out=tmp_path / "own")
    with pytest.raises(RunError, match="made from Python with a network of its own"):
        load(tmp_path / "own")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"nowhere is no run: there is no such folder; `bayesnorm runs` lists"):
        load(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is no run: it has no config\.json"):
        load(tmp_path)


def test_a_run_without_a_checkpoint_is_refused(copied):
    shutil.rmtree(copied / "run" / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint: train it with --resume"):
        load(copied / "run")


def test_settings_of_another_version_are_named(copied):
    about = json.loads((copied / "run" / "config.json").read_text())
    del about["sha256"]
    about["recipe"]["colour"] = "blue"
    (copied / "run" / "config.json").write_bytes(sealed(about))
    with pytest.raises(RunError, match="another version of bayesnorm: it has the setting 'colour'"):
        load(copied / "run")


def test_a_checkpoint_of_another_network_is_refused(copied):
    about = json.loads((copied / "run" / "config.json").read_text())
    del about["sha256"]
    for key, value in (("width", 0.125), ("norm", "weight")):
        changed = {**about, "recipe": {**about["recipe"], key: value}}
        (copied / "run" / "config.json").write_bytes(sealed(changed))
        with pytest.raises(RunError, match=rf"of another (network|run)|{key} was") as caught:
            load(copied / "run")
        assert "\n" not in str(caught.value)


def test_a_folder_that_the_data_does_not_need_is_no_obstacle(tmp_path):
    """Runs of earlier versions may have one, and `report --dir` gives it to all its runs."""
    recipe = Recipe("digits", norm="none", scale="point", width=0.0625, padding="same")
    data = recipe.load()
    fit(
        recipe.build(data, CONFIG.seed),
        data,
        CONFIG,
        out=tmp_path / "run",
        recipe={**recipe.as_dict(), "directory": "x"},
    )
    assert load(tmp_path / "run", "elsewhere").recipe == load(tmp_path / "run").recipe == recipe


def test_masks_that_number_other_cells_are_other_data(tmp_path):
    """SEG is judged by the numbers, though nothing is trained on them."""
    root = draw_cells(tmp_path / "set", frames=3, side=32)
    recipe = Recipe("cells", str(root), model="cell-net", norm="weight", width=0.125, reduce=2)
    data = recipe.load()
    config = Config(epochs=1, batch=2, lr=0.002, train_eval=0)
    fit(recipe.build(data, config.seed), data, config, out=tmp_path / "run", recipe=recipe.as_dict())
    assert load(tmp_path / "run").data.objects_digest() == data.objects_digest()
    image = pytest.importorskip("PIL.Image")
    for path in root.glob("*_GT/SEG/*.tif"):
        image.open(path).convert("I").point(lambda number: number * 2).convert("I;16").save(path)
    assert recipe.load().digest() == data.digest()
    with pytest.raises(RunError, match="was trained on other data"):
        load(tmp_path / "run")
