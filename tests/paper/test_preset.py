"""Presets: the paper's is the protocol of the paper, and the command line offers all of them."""

import dataclasses

import pytest

from bayesnorm.cli.reproduce import Choice
from bayesnorm.paper import PRESETS, Preset, Wanted
from bayesnorm.paper.fig4 import ASYMPTOTIC, BATCH_SIZE
from bayesnorm.paper.fig_a1 import PROTOCOL
from bayesnorm.train.config import Config
from bayesnorm.train.defaults import resolve
from bayesnorm.train.lr_search import peak
from bayesnorm.train.recipe import NO_FILES, Recipe

PAPER = PRESETS["paper"]


def resolved(run: Wanted, preset: Preset = PAPER) -> tuple[Recipe, Config]:
    settings = run.settings(preset)
    place = {} if settings["data"] in NO_FILES else {"directory": "somewhere"}
    recipe, config = resolve({**settings, **place})
    return Recipe(**recipe), Config.from_dict(config)


def test_the_command_line_offers_each() -> None:
    assert [choice.value for choice in Choice] == list(PRESETS)
    assert {"smoke", "short", "paper"} <= set(PRESETS)
    assert all(name == preset.name and preset.about for name, preset in PRESETS.items())


def test_images_of_the_paper_preset_follow_the_protocol() -> None:
    """45,000 images in batches of 32, SGD with Nesterov 0.9, g^600 = 0.1, 1200 epochs, learning rate by search."""
    recipe, config = resolved(Wanted("analytic+projection+bayes"))
    assert recipe == Recipe(data="cifar10", model="all-cnn", directory=recipe.directory, padding="same")
    assert (recipe.width, recipe.prior, recipe.augment) == (1.0, 10.0, True)
    assert (config.epochs, config.batch, config.lr) == (1200, 32, "auto")
    assert (config.optimizer, config.momentum) == ("sgd", 0.9)
    assert (config.lr_trials, config.lr_epochs) == (10, 5)
    assert config.decay**600 == pytest.approx(0.1)
    assert config.trial.decay**2.5 == pytest.approx(0.1), "five epochs of the search are the schedule in small"


@pytest.mark.parametrize("method", ["none", "batch", "batch+projection", "weight", "analytic+projection+bayes"])
def test_all_methods_are_trained_alike(method: str) -> None:
    config = resolved(Wanted(method))[1]
    assert (config.clip, config.warmup_steps, config.kl_factor) == (5.0, 2000, 2.0)
    assert config.lr_anneal == (method != "none"), "what an annealed search finds for plain networks diverges later"


def test_cells_of_the_paper_preset_follow_the_protocol() -> None:
    """Adam, g^1000 = 0.1, 3000 epochs, learning rate by search, a tenth of the KL divergence."""
    recipe, config = resolved(Wanted("analytic+projection+bayes", cells=True))
    assert (recipe.data, recipe.model, recipe.width) == ("cells", "cell-net", 1.0)
    assert (config.epochs, config.lr, config.optimizer, config.kl_factor) == (3000, "auto", "adam", 0.1)
    assert config.decay**1000 == pytest.approx(0.1)
    assert 1 <= config.batch <= 4
    steps = 12 // config.batch  # 12 images for training
    assert config.lr_epochs * steps >= 3 * config.warmup_steps
    assert peak(config.trial, config.lr_epochs, steps) == peak(config, config.epochs, steps) > 0.95


def test_the_search_on_cifar10_gets_to_the_learning_rates_that_it_is_about() -> None:
    config = resolved(Wanted("batch"))[1]
    assert 0.7 < peak(config.trial, config.lr_epochs, 1407) < 0.71


def test_train_has_the_settings_of_the_paper_preset_for_the_cells() -> None:
    """But for the precision, as bf16 is slow without a GPU."""
    recipe, config = resolve({"data": "cells", "directory": "somewhere"})
    ours = resolved(Wanted("analytic+projection+bayes", cells=True))
    assert (Recipe(**recipe), dataclasses.replace(Config.from_dict(config), precision="bf16")) == ours


@pytest.mark.parametrize("method", ["none", "batch", "batch+projection", "weight", "analytic+projection"])
def test_every_method_of_the_paper_preset_has_its_learning_rate_searched(method: str) -> None:
    for cells in (False, True):
        assert resolved(Wanted(method, cells=cells))[1].lr == "auto"


def test_the_paper_preset_measures_everything() -> None:
    assert (PAPER.norm_batch, PAPER.robustness) == (1024, None)
    assert len(PAPER.seeds) >= 3


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_what_the_figures_take_for_granted(preset: Preset) -> None:
    assert PROTOCOL in preset.batch_sizes
    assert resolved(Wanted("batch"), preset)[1].batch == PROTOCOL
    assert preset.norm_batch > PROTOCOL
    assert preset.seeds[0] == 0
    assert len(set(preset.seeds)) > 1
    assert BATCH_SIZE in preset.noise_sizes
    assert sum(size >= ASYMPTOTIC for size in preset.noise_sizes) >= 3
    assert list(preset.noise_sizes) == sorted(preset.noise_sizes)


def test_a_learning_rate_of_the_images_is_not_that_of_the_cells() -> None:
    preset = Preset("p", "", {"data": "digits"}, {"data": "strokes", "lr": 0.5}, by_norm={"batch": {"lr": 0.1}})
    assert preset.settings(False, "batch") == {"data": "digits", "lr": 0.1}
    assert preset.settings(False, "weight") == {"data": "digits"}
    assert preset.settings(True, "batch") == {"data": "strokes", "lr": 0.5}


# Side experiments.


def test_side_experiments_of_the_paper_preset_are_short() -> None:
    """40 epochs, in 20 of which the learning rate falls to a tenth, measured after each; all else is the protocol's."""
    for method in ("none", "batch"):
        plain, side = (resolved(Wanted(method, side=side)) for side in (False, True))
        assert plain[0] == side[0]
        assert side[1] == dataclasses.replace(plain[1], epochs=40, eval_every=1)
        assert side[1].decay ** 20 == pytest.approx(0.1)


@pytest.mark.parametrize("preset", [preset for preset in PRESETS.values() if preset is not PAPER], ids=lambda p: p.name)
def test_of_the_other_presets_they_are_the_runs_of_the_other_figures(preset: Preset) -> None:
    plain, side = Wanted("batch", batch=128), Wanted("batch", batch=128, side=True)
    assert preset.side == {}
    assert (side.name(preset), side.settings(preset)) == (plain.name(preset), plain.settings(preset))
    changed = preset.changed({"clip": 0.5})
    assert side.name(changed) == plain.name(changed)


def test_epochs_that_were_asked_for_are_those_of_side_experiments_too() -> None:
    preset = PAPER.changed({"epochs": 7})
    plain, side = Wanted("batch"), Wanted("batch", side=True)
    assert resolved(side, preset) == resolved(plain, preset)
    assert resolved(side, preset)[1].epochs == 7
    assert side.name(preset) == plain.name(preset) == "cifar10-batch-epochs=7-seed0"


def test_other_settings_that_were_asked_for_win_but_leave_the_epochs() -> None:
    preset = PAPER.changed({"eval_every": 5, "clip": 0.5})
    side = Wanted("batch", side=True)
    config = resolved(side, preset)[1]
    assert (config.epochs, config.eval_every, config.clip) == (40, 5, 0.5)
    assert side.name(preset) == "cifar10-batch-side-clip=0.5,epochs=40,eval_every=5-seed0"
    asked = PAPER.changed({"epochs": 40, "eval_every": 1})
    assert side.name(PAPER) != Wanted("batch").name(asked)


# Settings of one's own.


def test_changes_are_settings_of_every_run_and_part_of_the_names() -> None:
    preset = PRESETS["smoke"].changed({"padding": "valid", "epochs": 2, "lr": 0.5, "clip": None})
    assert preset.tag == "clip=null,epochs=2,lr=0.5,padding=valid"
    for run in (Wanted("batch"), Wanted("batch", cells=True)):
        recipe, config = resolved(run, preset)
        assert (recipe.padding, config.epochs, config.lr, config.clip) == ("valid", 2, 0.5, None)
        assert f"-batch-{preset.tag}-seed0" in run.name(preset)


def test_what_changes_no_result_changes_no_name() -> None:
    preset = PRESETS["smoke"].changed({"checkpoint_seconds": 5.0})
    assert preset.tag == ""
    assert Wanted("batch").name(preset) == Wanted("batch").name(PRESETS["smoke"])


def test_other_values_have_other_names() -> None:
    values = [1.0, 2.0, 0.1, 0.10000000000000002, 1e-7]
    assert len({PRESETS["smoke"].changed({"kl_factor": value}).tag for value in values}) == len(values)
    many = {"padding": "valid", "kl_factor": 0.123456789, "variance_step": 123.456, "decay_epochs": 7.5, "clip": 0.25}
    tags = [PRESETS["smoke"].changed({**many, "epochs": epochs}).tag for epochs in (2, 3)]
    assert len(set(tags)) == 2
    assert all(len(tag) == 16 and tag.startswith("set-") for tag in tags)


def test_a_change_of_one_method_is_a_setting_of_its_runs_alone_and_part_of_all_names() -> None:
    preset = PRESETS["smoke"].changed(
        {"lr": 0.5, "batch+projection:lr": 0.25, "batch+projection:activation": "softmax"}
    )
    assert preset.tag == "batch+projection.activation=softmax,batch+projection.lr=0.25,lr=0.5"
    for method, lr in {"batch": 0.5, "batch+projection": 0.25, "weight": 0.5}.items():
        for cells in (False, True):
            run = Wanted(method, cells=cells)
            recipe, config = resolved(run, preset)
            assert config.lr == lr
            assert (recipe.activation == "softmax") == (cells and method == "batch+projection")
            assert preset.tag in run.name(preset)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "batch"}, "--set norm: preset and figures decide it; leave it out"),
        ({"batch:seed": 3}, "--set batch:seed: preset and figures decide it; leave it out"),
        ({"batch:epochs": 0}, "epochs=0: must be a whole number of at least 1"),
        ({"seed": 3}, "--set seed: preset and figures decide it; leave it out"),
        ({"epochs": 0}, "epochs=0: must be a whole number of at least 1"),
        ({"kl_factor": -1.0}, "kl_factor=-1.0: must be a number, not negative"),
        ({"lr_low": 2.0}, "lr_low=2.0: must be below lr_high=1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        PRESETS["smoke"].changed(settings)
    assert str(caught.value) == message


def test_settings_of_the_cells_do_not_reach_the_images():
    preset = PRESETS["smoke"].changed({"activation": "softmax", "clip": 2.0})
    assert preset.settings(True, "batch")["activation"] == "softmax"
    assert "activation" not in preset.settings(False, "batch")
    assert all(preset.settings(cells, "batch")["clip"] == 2.0 for cells in (True, False))
