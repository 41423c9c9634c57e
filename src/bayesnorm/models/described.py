"""A network of this package in words and numbers, from which it is built; a file holds them beside the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .._wire import InputStats
from ..errors import DataError
from ..norms import Analytic, Batch, NormSpec, Weight
from ..scales import Bayes, Noise, Point, ScaleSpec
from .all_cnn import all_cnn
from .cell_net import cell_net
from .resnet import resnet18
from .unet import unet

MODELS: dict[str, Callable[..., nn.Module]] = {
    "all-cnn": all_cnn,
    "cell-net": cell_net,
    "resnet18": resnet18,
    "unet": unet,
}
NORMS: dict[str, type[NormSpec]] = {"batch": Batch, "weight": Weight, "analytic": Analytic}
SCALES: dict[str, type[ScaleSpec]] = {"point": Point, "noise": Noise, "bayes": Bayes}


@dataclass(frozen=True)
class Description:
    """Everything about a network but its parameters and its statistics.

    Arguments:
        model: key of ``MODELS``.
        options: further arguments of its function: width, classes, channels and the like.
        norm: None: the plain network.
        scale: what multiplies a normalized output.
    """

    model: str
    options: dict[str, Any]
    norm: NormSpec | None
    scale: ScaleSpec

    def build(self, input_stats: InputStats = None, example: Tensor | None = None) -> nn.Module:
        """The network as its function makes it; the arguments are those of :func:`bayesnorm.convert`."""
        make = MODELS[self.model]
        return make(self.norm, self.scale, input_stats=input_stats, example=example, **self.options)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "model": self.model,
            "options": self.options,
            "norm": None if self.norm is None else _named(self.norm, NORMS),
            "scale": _named(self.scale, SCALES),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Description:
        """The description that ``as_dict`` wrote.

        >>> plain = Description("all-cnn", {"width": 0.5}, Weight(), Bayes())
        >>> Description.from_dict(plain.as_dict()) == plain
        True
        """
        norm = None if values["norm"] is None else _spec(values["norm"], NORMS)
        if values["model"] not in MODELS:
            raise DataError(f"model {values['model']!r} is none of {', '.join(MODELS)}: use a newer bayesnorm")
        return cls(values["model"], dict(values["options"]), norm, _spec(values["scale"], SCALES))


def _named(spec: Any, kinds: dict[str, Any]) -> dict[str, Any]:
    name = next(name for name, kind in kinds.items() if isinstance(spec, kind))
    return {"name": name, **dataclasses.asdict(spec)}


def _spec(values: dict[str, Any], kinds: dict[str, Any]) -> Any:
    options = {key: value for key, value in values.items() if key != "name"}
    if values["name"] not in kinds:
        raise DataError(f"{values['name']!r} is none of {', '.join(kinds)}: use a newer bayesnorm")
    try:
        return kinds[values["name"]](**options)
    except TypeError as error:
        raise DataError(f"{values['name']} has other options here ({error}): use a newer bayesnorm") from error
