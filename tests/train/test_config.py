import dataclasses
import json

import pytest

from bayesnorm.train.config import OPERATIONAL, Config


def test_the_defaults_are_the_recipe_of_the_paper():
    config = Config()
    assert (config.batch, config.optimizer, config.momentum, config.lr) == (32, "sgd", 0.9, "auto")
    assert (config.lr_trials, config.lr_epochs) == (10, 5)
    assert config.project
    assert config.clip is None
    assert (config.kl_factor, config.kl_warmup, config.warmup_steps) == (1.0, 0.0, 0)
    assert config.deterministic


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"epochs": 1200}, 600),
        ({"epochs": 50}, 25),
        ({"epochs": 3000, "decay_epochs": 1000.0}, 1000),
        ({"epochs": 1}, 1),
    ],
)
def test_the_learning_rate_falls_to_a_tenth_in(options, epochs):
    assert Config(**options).decay ** epochs == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, 100.0),
        ({"optimizer": "adam"}, 1.0),
        ({"variance_step": 7.0}, 7.0),
        ({"variance_step": 7.0, "optimizer": "adam"}, 7.0),
    ],
)
def test_the_step_of_the_variances(options, factor):
    assert Config(**options).variance_factor == factor


def test_a_configuration_survives_json():
    changed = Config(epochs=3, lr=0.01, clip=1.0, norm_batch=64, precision="bf16", project=False, train_eval=0)
    for config in (Config(), changed):
        assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_an_unknown_setting_is_named():
    with pytest.raises(ValueError, match="unknown setting 'epoch' in a training configuration"):
        Config.from_dict({"epoch": 3})


WRONG = {
    **dict.fromkeys(("project", "compile", "deterministic", "lr_anneal", "sync_bn"), ("no", 0, 1, None)),
    **dict.fromkeys(("epochs", "batch", "lr_trials", "lr_epochs"), (0, -1, 1.5, True, "3", None)),
    **dict.fromkeys(("warmup_steps", "seed"), (-1, 0.5, False, "1", None)),
    **dict.fromkeys(("norm_batch", "checkpoint_steps"), (0, 1.5, True, "1")),
    "train_eval": (-1, 0.5, True),
    **dict.fromkeys(("lr_low", "lr_high"), (0.0, -1.0, float("nan"), float("inf"), "auto", None)),
    **dict.fromkeys(("variance_step", "decay_epochs", "clip"), (0.0, -1.0, float("nan"), float("inf"), "1")),
    **dict.fromkeys(("kl_factor", "kl_warmup", "checkpoint_seconds"), (-0.1, float("nan"), float("inf"), "1", None)),
    "lr": (0.0, -1.0, float("nan"), float("inf"), "best", None, True),
    "momentum": (0, 1, -0.5, float("nan"), None),
    "optimizer": ("SGD", "", None),
    "precision": ("fp16", None),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}=.*: must be") as caught:
        Config(**{name: value})
    assert "\n" not in str(caught.value)


def test_bounds_of_the_search_have_an_order():
    with pytest.raises(ValueError, match=r"lr_low=0\.5: must be below lr_high=0\.1"):
        Config(lr_low=0.5, lr_high=0.1)


def test_settings_cannot_be_changed_behind_the_checks():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().epochs = 0  # type: ignore[misc]


def test_only_settings_of_the_operation_may_change_in_a_run():
    assert {"checkpoint_seconds", "checkpoint_steps", "directory", "data.name"} == OPERATIONAL
