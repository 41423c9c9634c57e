"""A network and its data from a description in words and numbers, as the command line gives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import data as datasets
from .. import norms, scales
from .._initialize import init_from_data_
from ..data.augment import NOTHING
from ..data.base import Data
from ..data.passes import input_statistics, training_images
from ..errors import is_out_of_memory
from ..layers import norm_layers
from ..models.described import Description
from ..norms import Analytic, NormSpec
from ..scales import Bayes, ScaleSpec
from .config import Config
from .kinds import number, positive, require_flags, whole
from .numerics import numerics

PIXEL_MODELS = ("cell-net", "unet")
"""Networks that predict classes of pixels."""
NO_FILES = ("digits", "strokes")
"""Data sets that come with scikit-learn."""

ONLY = {
    "image_size": ("data", "folder"),
    "masks": ("data", "cells"),
    "cell_split": ("data", "cells"),
    "reduce": ("data", "cells"),
    "activation": ("model", "cell-net"),
    "final_activation": ("model", "cell-net"),
}
"""Settings that mean something for one kind of data or one network alone."""


@dataclass(frozen=True)
class Recipe:
    """What is trained on what.

    Arguments:
        data: scikit-learn's digits, CIFAR-10, a Cell Tracking Challenge folder, strokes of the digits to be segmented,
            or a folder of images per class.
        directory: folder of its files.
        split_seed: decides which samples are for validation.
        image_size: ``(H, W)`` to which the images of a folder are scaled; None: they all have one size.
        augment: shift, mirror and deform training images, as the data set allows.
        standardize: images have mean 0 and std 1 in every channel; else they are divided by their largest value.
        masks: whose masks of the cells are used; expert+auto: for training, automatic ones where the experts made none.
        cell_split: how cells are split: at random, or from sequence 01 to 02.
        reduce: pixels of the frames of cells, each way, that are made one; 1: frames as they are.
        model: the network; None: what fits the data (a folder: all-cnn for up to 64 pixels, else resnet18).
        norm: what a response is normalized by: nothing, the batch, the length of its weights, or its mean and std as
            they follow from the data's (analytic).
        scale: what multiplies it then: a number, one with fixed noise, or one with a learned posterior (bayes).
        width: factor on the channels.
        padding: none or one that keeps the size, of All-CNN.
        dropout: probability of dropping a value behind the strided convolutions of All-CNN.
        activation: that of the cell network.
        final_activation: of the cell network: also behind its last convolution, as the paper prints it.
        first_layer: of analytic norm: pixels taken as independent (moments), or with their covariance (patch).
        sigma_init: first sigma of the posterior, relative to s.
        prior: std of the prior N(1, std^2) of the scales, or log-uniform.
        per_layer_variance: one sigma for a layer.
        stochastic_bias: a posterior over the bias too.
        sigma_u: std of the factor of the noise scale, for all layers or one for each.
        sigma_v: std of the summand of the noise scale, for all layers or one for each.
    """

    data: Literal["digits", "cifar10", "cells", "strokes", "folder"] = "digits"
    directory: str | None = None
    split_seed: int = 0
    image_size: tuple[int, int] | None = None
    augment: bool = True
    standardize: bool = True
    masks: Literal["expert", "expert+auto", "auto"] = "expert"
    cell_split: Literal["random", "01-02"] = "random"
    reduce: int = 1
    model: Literal["all-cnn", "resnet18", "cell-net", "unet"] | None = None
    norm: Literal["none", "batch", "weight", "analytic"] = "analytic"
    scale: Literal["point", "noise", "bayes"] = "bayes"
    width: float = 1.0
    padding: Literal["valid", "same"] = "valid"
    dropout: float = 0.0
    activation: Literal["leaky_relu", "softmax", "softplus"] = "leaky_relu"
    final_activation: bool = False
    first_layer: Literal["moments", "patch"] = "moments"
    sigma_init: float = 0.1
    prior: float | Literal["log-uniform"] = 10.0
    per_layer_variance: bool = False
    stochastic_bias: bool = False
    sigma_u: float | tuple[float, ...] = 0.05
    sigma_v: float | tuple[float, ...] = 0.05

    def __post_init__(self) -> None:
        require_flags(self)
        for field in ("data", "masks", "cell_split", "model", "norm", "scale", "padding", "activation", "first_layer"):
            _require_choice(field, getattr(self, field))
        for field in ("width", "sigma_init"):
            _require(field, getattr(self, field), positive, "a positive number")
        _require("reduce", self.reduce, lambda v: whole(v) and v >= 1, "a whole number of at least 1")
        _require("dropout", self.dropout, lambda v: number(v) and 0 <= v < 1, "at least 0 and below 1")
        _require("directory", self.directory, lambda v: v is None or isinstance(v, str), "the name of a folder")
        _require("image_size", self.image_size, _is_size, "two whole numbers of at least 1, height and width")
        for field in ("sigma_u", "sigma_v"):
            self._check_sigma(field)
        seed = self.split_seed
        _require("split_seed", seed, lambda v: whole(v) and 0 <= v < 2**63, "a whole number, not negative, below 2^63")
        if self.prior != "log-uniform":
            _require("prior", self.prior, positive, "a positive number or log-uniform")
        if self.data not in NO_FILES and self.directory is None:
            raise ValueError(f"--data {self.data} needs --dir, the folder of its files")
        if self.data in NO_FILES and self.directory is not None:
            raise ValueError(
                f"--dir {self.directory}: --data {self.data} has no files; leave it out, or choose --data cifar10, "
                "cells or folder"
            )
        if self.norm == "none" and self.scale != "point":
            raise ValueError(f"--scale {self.scale} needs a norm to scale: choose --scale point, or another --norm")
        if self.image_size is not None:
            object.__setattr__(self, "image_size", tuple(self.image_size))
        for field, (of, kind) in ONLY.items():
            if (
                getattr(self, of) not in (kind, None)
                and getattr(self, field) != Recipe.__dataclass_fields__[field].default
            ):
                option = f"--{field.replace('_', '-')}"
                raise ValueError(f"{option} is for --{of} {kind}, and this is {getattr(self, of)}: leave it out")

    def _check_sigma(self, field: str) -> None:
        value = getattr(self, field)
        if not isinstance(value, (list, tuple)):
            _require(field, value, lambda v: number(v) and v >= 0, "a number, not negative")
            return
        object.__setattr__(self, field, tuple(value))
        _require(field, value, lambda v: v and all(number(x) and x >= 0 for x in v), "numbers, none of them negative")
        if self.scale != "noise":
            raise ValueError(f"{field}={value!r}: a value for each layer needs --scale noise, this is {self.scale}")

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}

    def load(self) -> Data:
        """Read and check the data."""
        data = self._read()
        if not self.standardize:
            largest = data.train.images.max().float().clamp(min=1e-8)
            data = dataclasses.replace(data, mean=torch.zeros_like(data.mean), std=largest.expand_as(data.std).clone())
        return data if self.augment else dataclasses.replace(data, augment=NOTHING, augment_val=False)

    def _read(self) -> Data:
        if self.data == "digits":
            return datasets.digits(self.split_seed)
        if self.data == "strokes":
            return datasets.strokes(self.split_seed)
        assert self.directory is not None
        if self.data == "cifar10":
            return datasets.cifar10(self.directory, self.split_seed)
        if self.data == "folder":
            return datasets.folder(self.directory, self.split_seed, self.image_size)
        return datasets.cells(self.directory, self.split_seed, self.masks, split=self.cell_split, reduce=self.reduce)

    def build(self, data: Data, seed: int, device: torch.device | str = "cpu", initialize: bool = True) -> nn.Module:
        """The network in its initial state, which follows from the seed and the data.

        As in the paper, a network without normalization or with weight norm is initialized by a batch of 128 (fewer if
        they have more than a million pixels), analytic norm has the statistics of the data, and batch norm starts with
        s = 1 and b = 0.

        Arguments:
            initialize: False where the parameters are read from a file next.
        """
        batch = torch.cat([images.cpu() for images in islice(_small(data, seed), _batch_size(data))])
        mean, var = (value.cpu() for value in input_statistics(data, seed))
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            net = self.describe(data).build(input_stats=(mean, var), example=self._example(batch))
        if self.scale == "noise":
            self._set_noise(net)
        net.to(device)
        _check_size(net, batch[:1].to(device), data)
        # Averages over smooth images keep more of the variance than the moment rule assumes: the cell network, which
        # has five of them, starts from data with analytic norm too.
        if initialize and (self.norm in ("none", "weight") or (self.norm == "analytic" and data.per_pixel)):
            init_from_data_(net, batch.to(device))
        return net

    def describe(self, data: Data) -> Description:
        """The network that fits the data, without its parameters."""
        channels, height, width = data.image_size
        options: dict[str, Any] = {"width": self.width, "num_classes": len(data.classes), "in_channels": channels}
        name = self.model or ("cell-net" if data.per_pixel else "all-cnn" if min(height, width) <= 64 else "resnet18")
        if (name in PIXEL_MODELS) != data.per_pixel:
            of = "pixels" if data.per_pixel else "images"
            raise ValueError(
                f"--model {name} does not fit --data {self.data}, which has classes of {of}: leave --model out"
            )
        if self.dropout and name != "all-cnn":
            raise ValueError(f"--dropout {self.dropout} is for --model all-cnn, this is {name}: leave it out")
        if name == "all-cnn":
            options |= {"padding": self.padding, "dropout": self.dropout}
        elif name == "cell-net":
            options |= {"activation": self.activation, "final_activation": self.final_activation}
        elif name == "resnet18":
            options["stem"] = "cifar" if min(height, width) <= 64 else "imagenet"
        return Description(name, options, self._norm(), self._scale())

    def _norm(self) -> NormSpec | None:
        if self.norm == "none":
            return None
        return Analytic(self.first_layer) if self.norm == "analytic" else norms.parse(self.norm)

    def _scale(self) -> ScaleSpec:
        if self.scale == "bayes":
            return Bayes(self.prior, self.sigma_init, self.per_layer_variance, self.stochastic_bias)
        return scales.parse(self.scale)

    @torch.no_grad()
    def _set_noise(self, net: nn.Module) -> None:
        """Noise of each layer, in the order of ``norm_layers``."""
        scales = [layer.scale for layer in norm_layers(net).values()]
        for field in ("sigma_u", "sigma_v"):
            given = getattr(self, field)
            values = given if isinstance(given, tuple) else (given,) * len(scales)
            if len(values) != len(scales):
                raise ValueError(
                    f"{field} has {len(values)} values, but the network has {len(scales)} normalized layers: give one "
                    "for each, or a single number for all"
                )
            for scale, value in zip(scales, values, strict=True):
                getattr(scale, field).fill_(value)

    def _example(self, batch: Tensor) -> Tensor | None:
        return batch if self.norm == "analytic" and self.first_layer == "patch" else None


def prepare(recipe: Recipe, config: Config, device: torch.device, initialize: bool = True) -> tuple[Data, nn.Module]:
    """Data and network of a run on a device, made with the numerics of the run."""
    data = recipe.load().to(device)
    with numerics(config, device):
        return data, recipe.build(data, config.seed, device, initialize)


def _batch_size(data: Data) -> int:
    """128 images, or as many as a million pixels hold."""
    height, width = data.image_size[1:]
    return max(1, min(128, (1 << 20) // (height * width)))


def _small(data: Data, seed: int) -> Any:
    """Augmented training images one by one, as far as they are asked for."""
    for images in training_images(data, seed, 128):
        yield from images.split(1)


def _check_size(net: nn.Module, image: Tensor, data: Data) -> None:
    try:
        with torch.no_grad():
            net.eval()(image)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"images of size {data.image_size} do not pass through the network ({str(error).splitlines()[0]}): choose "
            "--padding same, another --model or larger images"
        ) from error
    finally:
        net.train()


CHOICES: dict[str, tuple[str | None, ...]] = {
    "data": ("digits", "cifar10", "cells", "strokes", "folder"),
    "masks": ("expert", "expert+auto", "auto"),
    "cell_split": ("random", "01-02"),
    "model": (None, "all-cnn", "resnet18", "cell-net", "unet"),
    "norm": ("none", "batch", "weight", "analytic"),
    "scale": ("point", "noise", "bayes"),
    "padding": ("valid", "same"),
    "activation": ("leaky_relu", "softmax", "softplus"),
    "first_layer": ("moments", "patch"),
}


def _require(field: str, value: Any, holds: Callable[[Any], bool], what: str) -> None:
    if not holds(value):
        raise ValueError(f"{field}={value!r}: must be {what}")


def _is_size(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(whole(side) and side >= 1 for side in value)


def _require_choice(field: str, value: object) -> None:
    if not isinstance(value, str | None) or value not in CHOICES[field]:
        raise ValueError(f"{field}={value!r}: choose {', '.join(str(c) for c in CHOICES[field] if c)}")
