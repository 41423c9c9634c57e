import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_data import made_up
from torch import nn

import bayesnorm
from bayesnorm.data.passes import input_statistics
from bayesnorm.errors import DataError
from bayesnorm.layers import norm_layers
from bayesnorm.norms import AnalyticNorm, BatchNorm
from bayesnorm.train.config import Config
from bayesnorm.train.defaults import DEFAULTS, resolve
from bayesnorm.train.recipe import Recipe

SMALL = {"width": 0.0625, "padding": "same"}


def outputs(net, images):
    """Outputs of the convolutions and linear layers in evaluation mode, normalized where they are."""
    found = []
    kinds = (nn.Conv2d, nn.Linear, *{type(layer) for layer in norm_layers(net).values()})
    handles = [
        module.register_forward_hook(lambda module, args, output: found.append(output.detach().clone()))
        for module in net.modules()
        if isinstance(module, kinds)
    ]
    with torch.no_grad():
        net.eval()(images)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(
    ("data", "recipe", "config"),
    [
        ("digits", {"model": "all-cnn", "width": 0.125, "padding": "same"}, {"epochs": 50}),
        ("cifar10", {"model": "all-cnn"}, {"epochs": 1200}),
        ("cells", {"model": "cell-net"}, {"epochs": 3000, "optimizer": "adam", "kl_factor": 0.1, "batch": 2}),
        ("cells", {}, {"clip": 1.0, "warmup_steps": 100, "lr_epochs": 50, "eval_every": 10}),
        ("strokes", {"model": "cell-net", "width": 0.5}, {"epochs": 30, "optimizer": "adam", "batch": 2, "clip": 1.0}),
        ("folder", {"padding": "same"}, {"epochs": 100}),
    ],
)
def test_every_data_set_has_its_defaults(data, recipe, config):
    directory = {} if data in ("digits", "strokes") else {"directory": "somewhere"}
    found = resolve({"data": data, **directory})
    for key, value in recipe.items():
        assert found[0][key] == value
    for key, value in config.items():
        assert found[1][key] == value
    Recipe(**found[0])
    Config.from_dict(found[1])


def test_strokes_decay_as_cells_do():
    for epochs in (30, 60):
        config = Config.from_dict(resolve({"data": "strokes", "epochs": epochs})[1])
        assert config.decay ** (epochs / 3) == pytest.approx(0.1)
    assert resolve({"data": "strokes", "decay_epochs": 7})[1]["decay_epochs"] == 7


def test_cells_and_cifar10_decay_as_in_the_paper():
    cifar10 = Config.from_dict(resolve({"data": "cifar10", "directory": "d"})[1])
    assert cifar10.decay**600 == pytest.approx(0.1)
    assert Config.from_dict(resolve({"data": "cells", "directory": "d"})[1]).decay ** 1000 == pytest.approx(0.1)


def test_what_is_given_wins_over_the_defaults():
    recipe, config = resolve({"data": "digits", "width": 0.5, "epochs": 3, "lr": 0.1})
    assert recipe == {"data": "digits", "model": "all-cnn", "width": 0.5, "padding": "same"}
    assert config == {"epochs": 3, "lr": 0.1}
    assert resolve({})[0]["model"] == "all-cnn", "digits, if nothing is said"


def test_a_directory_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve({"data": "folder", "directory": "images"})[0]["directory"] == str(tmp_path / "images")


def test_an_unknown_setting_is_named():
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        resolve({"data": "digits", "colour": 1})


def test_dropout_reaches_the_network():
    data = made_up()
    for dropout, count in ((0.0, 0), (0.4, 2)):
        net = Recipe(norm="weight", dropout=dropout, **SMALL).build(data, 0)
        assert [module.p for module in net.modules() if isinstance(module, nn.Dropout)] == count * [dropout]


def test_dropout_is_off_unless_it_is_asked_for():
    assert all("dropout" not in values for values in DEFAULTS.values())
    assert Recipe().dropout == 0.0
    assert resolve({"dropout": 0.5})[0]["dropout"] == 0.5


@pytest.mark.parametrize(("model", "pixels"), [("resnet18", False), ("cell-net", True), (None, True)])
def test_dropout_of_a_network_that_has_none_is_refused(model, pixels):
    recipe = Recipe(data="strokes" if pixels else "digits", model=model, dropout=0.5)
    with pytest.raises(ValueError, match=r"--dropout 0\.5 is for --model all-cnn, this is (resnet18|cell-net)"):
        recipe.build(made_up(pixels=pixels), 0)


def test_a_recipe_survives_json():
    for recipe in (
        Recipe(),
        Recipe("folder", "somewhere", image_size=(8, 9), prior="log-uniform"),
        Recipe(scale="noise", sigma_u=(0.1, 0.2), sigma_v=0.3),
    ):
        stored = json.loads(json.dumps(recipe.as_dict()))
        assert Recipe(**stored) == recipe
        assert Recipe(**stored).as_dict() == stored


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": "mnist"}, "data='mnist': choose digits, cifar10"),
        ({"model": "vgg"}, "model='vgg': choose all-cnn"),
        ({"norm": "layer"}, "norm='layer': choose none, batch"),
        ({"scale": "x"}, "scale='x'"),
        ({"padding": "x"}, "padding='x'"),
        ({"activation": "x"}, "activation='x'"),
        ({"first_layer": "x"}, "first_layer='x'"),
        ({"masks": "x"}, "masks='x'"),
        ({"cell_split": "x"}, "cell_split='x'"),
        ({"data": "cifar10"}, "--data cifar10 needs --dir"),
        ({"data": "folder"}, "--data folder needs --dir"),
        ({"norm": "none", "scale": "bayes"}, "--scale bayes needs a norm"),
        ({"norm": "none", "scale": "noise"}, "--scale noise needs a norm"),
        ({"masks": "auto"}, "--masks is for --data cells, and this is digits: leave it out"),
        ({"cell_split": "01-02"}, "--cell-split is for --data cells"),
        ({"reduce": 2}, "--reduce is for --data cells, and this is digits: leave it out"),
        ({"data": "cells", "directory": ".", "reduce": 0}, "reduce=0: must be a whole number of at least 1"),
        ({"data": "cells", "directory": ".", "reduce": 2.0}, r"reduce=2\.0: must be a whole number"),
        ({"image_size": (8, 8)}, "--image-size is for --data folder"),
        ({"data": "folder", "directory": ".", "image_size": (0, 8)}, r"image_size=\(0, 8\): must be two whole numbers"),
        ({"data": "folder", "directory": ".", "image_size": "8x8"}, "image_size='8x8': must be two whole numbers"),
        ({"data": "folder", "directory": 5}, "directory=5: must be the name of a folder"),
        ({"data": ["digits"]}, r"data=\['digits'\]: choose digits"),
        ({"augment": "no"}, "augment='no': must be true or false"),
        ({"per_layer_variance": 0}, "per_layer_variance=0: must be true or false"),
        ({"split_seed": 1.5}, r"split_seed=1\.5: must be a whole number"),
        ({"width": "big"}, "width='big': must be a positive number"),
        ({"prior": "abc"}, "prior='abc': must be a positive number or log-uniform"),
        ({"sigma_u": "0.1"}, "sigma_u='0.1': must be a number"),
        ({"model": "all-cnn", "activation": "softmax"}, "--activation is for --model cell-net, and this is all-cnn"),
        ({"model": "unet", "final_activation": True}, "--final-activation is for --model cell-net"),
        ({"sigma_u": -1.0}, r"sigma_u=-1\.0: must be a number, not negative"),
        ({"dropout": 1.0}, r"dropout=1\.0: must be at least 0 and below 1"),
        ({"dropout": -0.5}, r"dropout=-0\.5: must be at least 0 and below 1"),
        ({"dropout": float("nan")}, r"dropout=nan: must be at least 0 and below 1"),
        (
            {"scale": "noise", "sigma_u": [0.1, -0.2]},
            r"sigma_u=\[0\.1, -0\.2\]: must be numbers, none of them negative",
        ),
        ({"scale": "noise", "sigma_v": (0.1, float("nan"))}, r"sigma_v=\(0\.1, nan\): must be numbers"),
        ({"scale": "noise", "sigma_v": ()}, r"sigma_v=\(\): must be numbers"),
        ({"sigma_u": (0.1, 0.2)}, r"sigma_u=\(0\.1, 0\.2\): a value for each layer needs --scale noise.*bayes"),
    ],
)
def test_what_does_not_fit_is_refused(settings, words):
    with pytest.raises(ValueError, match=words) as caught:
        Recipe(**settings)
    assert "\n" not in str(caught.value)


MODELS = {"all-cnn": (False, (3, 8, 8)), "resnet18": (False, (1, 8, 8)), "cell-net": (True, (1, 12, 12))}
METHODS = [("none", "point"), *[(n, s) for n in ("batch", "weight", "analytic") for s in ("point", "noise", "bayes")]]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_every_network_builds_and_steps(model, norm, scale):
    pixels, size = MODELS[model]
    data = made_up(10, 3, size=size, pixels=pixels)
    net = Recipe(model=model, norm=norm, scale=scale, **SMALL).build(data, 0)
    assert net.training
    assert bool(norm_layers(net)) == (norm != "none")
    x = data.standardized(data.train.images)
    out = net(x)
    assert out.shape == (10, 3, *size[1:]) if pixels else out.shape == (10, 3)
    torch.testing.assert_close(out.exp().sum(1), torch.ones_like(out[:, 0]))
    loss = bayesnorm.ELBO(net, 10, nll="log_probs")(out, data.train.targets).total
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    ("size", "pixels", "kind"),
    [((1, 8, 8), False, "AllCNN"), ((1, 72, 72), False, "ResNet18"), ((1, 12, 12), True, "CellNet")],
)
def test_without_a_model_there_is_what_fits(size, pixels, kind):
    data = made_up(6, 2, size=size, pixels=pixels)
    net = Recipe(norm="batch", scale="point", **SMALL).build(data, 0)
    assert type(net).__name__ == kind


@pytest.mark.parametrize("model", ["all-cnn", "resnet18", "cell-net"])
def test_pixels_and_images_need_their_models(model):
    pixels = model != "cell-net"
    with pytest.raises(ValueError, match=f"--model {model} does not fit --data digits, which has classes of"):
        Recipe(model=model, **SMALL).build(made_up(6, 2, pixels=pixels), 0)


def test_images_that_are_too_small_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"images of size \(1, 8, 8\) do not pass.*--padding same") as caught:
        Recipe(model="all-cnn", norm="weight", width=0.0625, padding="valid").build(made_up(6, 2), 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("norm", "low", "high"), [("none", 0.99, 1.01), ("weight", 0.99, 1.01)])
def test_none_and_weight_norm_start_with_outputs_of_variance_1_on_the_batch(norm, low, high):
    """128 images, as in the paper."""
    data = made_up(128, 2)
    net = Recipe(norm=norm, scale="point", width=0.125, padding="same").build(data, 0)
    layers = outputs(net, data.standardized(data.train.images))
    assert len(layers) == 9
    for layer in layers:
        assert layer.mean((0, 2, 3)).abs().max() < 1e-2
        assert low < layer.std((0, 2, 3), correction=0).min() <= layer.std((0, 2, 3), correction=0).max() < high


def test_analytic_norm_starts_from_the_statistics_of_the_data():
    """Pilot of the method: the std of the layers lies in 0.79 to 1.0 at initialization; on unstructured images."""
    data = made_up(200, 2, size=(3, 16, 16))
    data.train.images.normal_(generator=torch.Generator().manual_seed(3))
    net = Recipe(norm="analytic", scale="point", width=0.5, padding="same").build(data, 0)
    layers = outputs(net, data.standardized(data.train.images))
    assert len(layers) == 9
    for layer in layers:
        assert 0.6 < layer.std((0, 2, 3)).mean() < 1.3
    for layer in norm_layers(net).values():
        assert isinstance(layer.norm, AnalyticNorm)
        assert (layer.scale.s == 1).all()
        assert (layer.scale.b == 0).all()
    mean, var = input_statistics(data, 0)
    assert torch.equal(net.input_mean.flatten(), mean)
    assert torch.equal(net.input_var.flatten(), var)


def test_batch_norm_starts_with_s_1_and_b_0():
    net = Recipe(norm="batch", scale="point", **SMALL).build(made_up(), 0)
    for layer in norm_layers(net).values():
        assert isinstance(layer.norm, BatchNorm)
        assert (layer.scale.s == 1).all()
        assert (layer.scale.b == 0).all()


def test_the_cell_network_starts_from_data_with_analytic_norm_too():
    data = made_up(8, 2, size=(1, 24, 24), pixels=True)
    net = Recipe(norm="analytic", scale="point", width=0.125).build(data, 0)
    for layer in outputs(net, data.standardized(data.train.images)):
        assert 0.9 < layer.std() < 1.1


def test_options_reach_the_layers():
    data = made_up()
    net = Recipe(norm="weight", sigma_init=0.3, prior=2.0, per_layer_variance=True, **SMALL).build(data, 0)
    layer = next(iter(norm_layers(net).values()))
    assert layer.scale.u.numel() == 1
    assert layer.scale.spec.prior == 2.0
    net = Recipe(norm="weight", prior="log-uniform", stochastic_bias=True, **SMALL).build(data, 0)
    layer = next(iter(norm_layers(net).values()))
    assert layer.scale.spec.prior == "log-uniform"
    assert hasattr(layer.scale, "v")
    net = Recipe(norm="weight", scale="noise", sigma_u=0.2, sigma_v=0.3, **SMALL).build(data, 0)
    layer = next(iter(norm_layers(net).values()))
    assert layer.scale.sigma_u.flatten()[0] == pytest.approx(0.2)
    assert layer.scale.sigma_v.flatten()[0] == pytest.approx(0.3)


def test_each_layer_has_its_own_noise():
    """sigma_U of the nine layers as the paper printed it for batch norm, in the order of the layers."""
    printed = (0.05, 0.03, 0.026, 0.023, 0.02, 0.026, 0.041, 0.045, 0.071)
    net = Recipe(norm="weight", scale="noise", sigma_u=printed, sigma_v=0.3, **SMALL).build(made_up(), 0)
    scales = [layer.scale for layer in norm_layers(net).values()]
    for scale, sigma in zip(scales, printed, strict=True):
        torch.testing.assert_close(scale.sigma_u, torch.full_like(scale.s, sigma))
        torch.testing.assert_close(scale.sigma_v, torch.full_like(scale.s, 0.3))


def test_one_number_is_that_number_in_every_layer():
    """As before there were several, so that old runs are what they were."""
    data = made_up()
    one = Recipe(norm="weight", scale="noise", sigma_u=0.2, **SMALL).build(data, 0).state_dict()
    nine = Recipe(norm="weight", scale="noise", sigma_u=(0.2,) * 9, **SMALL).build(data, 0).state_dict()
    assert one.keys() == nine.keys()
    assert all(torch.equal(one[name], nine[name]) for name in one)


@pytest.mark.parametrize("field", ["sigma_u", "sigma_v"])
def test_noise_for_another_number_of_layers_is_refused(field):
    recipe = Recipe(norm="weight", scale="noise", **{field: (0.1, 0.2)}, **SMALL)
    with pytest.raises(ValueError, match=f"{field} has 2 values, but the network has 9 normalized layers") as caught:
        recipe.build(made_up(), 0)
    assert "\n" not in str(caught.value)


def test_patch_statistics_make_the_first_layer_exact():
    data = made_up(128, 2, size=(1, 32, 32))
    images = data.train.images
    images.copy_(F.avg_pool2d(images, 5, 1, 2))  # neighbours that are much alike
    x = data.standardized(images)
    error = {}
    for first in ("moments", "patch"):
        net = Recipe(norm="analytic", scale="point", first_layer=first, width=0.125).build(data, 0)
        error[first] = outputs(net, x)[0].std((0, 2, 3)).log().abs().max()
    assert error["patch"] < 0.02 < 0.2 < error["moments"]


@pytest.mark.parametrize("norm", ["none", "batch", "weight", "analytic"])
def test_the_seed_decides_on_the_initial_state_and_nothing_else_does(norm):
    data, scale = made_up(), "point" if norm == "none" else "bayes"
    recipe = Recipe(norm=norm, scale=scale, **SMALL)
    first = recipe.build(data, 3).state_dict()
    torch.rand(5)
    again, other = recipe.build(data, 3).state_dict(), recipe.build(data, 4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    weight = next(name for name in first if name.endswith("weight"))
    assert not torch.equal(first[weight], other[weight])
    if norm != "none":
        assert first["noise_key"] != other["noise_key"]


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    Recipe(norm="analytic", **SMALL).build(made_up(), 3)
    assert torch.equal(torch.rand(1), expected)


def test_digits_load_by_split_seed():
    first, second = Recipe(split_seed=0).load(), Recipe(split_seed=1).load()
    assert first.name == "digits"
    assert torch.equal(first.test.images, second.test.images)
    assert not torch.equal(first.val.images, second.val.images)


def test_images_are_standardized_or_only_brought_to_the_unit_interval():
    usual, plain = Recipe().load(), Recipe(standardize=False).load()
    images = usual.standardized(usual.train.images)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(1), atol=1e-5, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(1))
    images = plain.standardized(plain.train.images)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    assert torch.equal(plain.train.images, usual.train.images)


def test_analytic_norm_takes_the_statistics_of_images_that_are_not_standardized():
    data = Recipe(standardize=False).load()
    net = Recipe(norm="analytic", standardize=False, **SMALL).build(data, 0)
    mean, var = input_statistics(data, 0)
    torch.testing.assert_close(net.input_mean, mean)
    torch.testing.assert_close(net.input_var, var)
    assert mean.item() > 0.1


def test_strokes_load_by_split_seed_and_need_no_folder():
    first, second = Recipe("strokes", split_seed=0).load(), Recipe("strokes", split_seed=1).load()
    assert first.name == "strokes"
    assert first.augment.deform > 0 == Recipe("strokes", augment=False).load().augment.deform
    assert torch.equal(first.test.images, second.test.images)
    assert not torch.equal(first.val.images, second.val.images)


def test_a_network_is_tried_on_its_device(monkeypatch):
    """A forward pass of a large image takes long elsewhere."""
    found = []

    def check(net, image, data):
        found.extend([image.device.type, *{parameter.device.type for parameter in net.parameters()}])

    monkeypatch.setattr("bayesnorm.train.recipe._check_size", check)
    recipe = Recipe("strokes", norm="batch", scale="point", width=0.125)
    recipe.build(recipe.load(), 0, "meta", initialize=False)
    assert found == ["meta", "meta"]


@pytest.mark.parametrize("data", ["cifar10", "cells", "folder"])
def test_data_that_is_not_there_is_an_error_that_names_the_place(data, tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        Recipe(data, str(tmp_path / "nowhere")).load()


def test_a_folder_of_images_loads(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(20):
            image.new("L", (10, 12), number * 9).save(tmp_path / name / f"{number}.png")
    data = Recipe("folder", str(tmp_path), image_size=(8, 8)).load()
    assert data.image_size == (1, 8, 8)
    assert data.classes == ("cat", "dog")


def test_defaults_are_settings_that_exist():
    for data, values in DEFAULTS.items():
        recipe, config = resolve({"data": data, "directory": "d"})
        assert {**recipe, **config}.items() >= values.items()
        assert Config.from_dict(config).epochs == values["epochs"]
