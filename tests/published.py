"""A small network trained on the digits, published: what the tests of pretrained networks share."""

from pathlib import Path

from bayesnorm.models import Pretrained
from bayesnorm.train import Config, Recipe, fit, load
from bayesnorm.train._load import Loaded
from bayesnorm.train.publish import publish

CONFIG = Config(epochs=10, batch=32, lr=0.04, train_eval=0)
NAME = "small-digits"


def trained(root: Path, norm: str = "analytic", scale: str = "bayes", project: bool = True) -> Loaded:
    """A finished run in ``root / "run"``."""
    recipe = Recipe("digits", model="all-cnn", width=0.0625, padding="same", norm=norm, scale=scale)
    config = Config(**{**CONFIG.as_dict(), "project": project})
    data = recipe.load()
    fit(recipe.build(data, config.seed), data, config, out=root / "run", recipe=recipe.as_dict())
    return load(root / "run")


def published(root: Path) -> tuple[Loaded, Pretrained]:
    """The run, and what was published of it in ``root / "weights"``."""
    run = trained(root)
    return run, publish(run, NAME, root / "weights", samples=10)
