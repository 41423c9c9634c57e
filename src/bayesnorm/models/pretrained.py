"""Networks that come trained: ``NAME.safetensors`` with the tensors, ``NAME.json`` with all else and the checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._files import sha256, unsealed
from .._predict import Prediction, predict
from ..errors import DataError
from ._tensors import tensors_of
from .described import Description

WEIGHTS = Path(__file__).parent / "weights"
"""Where those of this package are."""
FORMAT = 1
REMEDY = "install bayesnorm again, or repeat `bayesnorm publish`"


class Pretrained(nn.Module):
    """A trained network with what belongs to it, in evaluation mode.

    ``forward`` takes what the network was trained on, standardized images, so that everything in this package works on
    it as on any network; :meth:`predict` takes images as they are.

    Arguments:
        net: the network.
        card: what ``NAME.json`` says: ``"network"``, ``"input"``, ``"classes"``, ``"metrics"``, ``"training"``, ...
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, card: dict[str, Any]) -> None:
        super().__init__()
        self.net = net
        self.card = card
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(card["input"][name]), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """``to``, ``to_empty`` and the like: what no state dict has is read off the card again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in ("mean", "std"):
            moved = getattr(self, name)
            setattr(self, name, torch.tensor(self.card["input"][name], dtype=moved.dtype, device=moved.device))
        return self

    @property
    def name(self) -> str:
        """By which it was loaded."""
        return str(self.card["name"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of each class."""
        return tuple(self.card["classes"])

    @property
    def image_size(self) -> tuple[int, int, int]:
        """``(C, H, W)`` of the images that it was trained on."""
        channels, height, width = self.card["input"]["size"]
        return channels, height, width

    @property
    def threshold(self) -> float | None:
        """Entropy up to which predictions of validation images were wrong in one of a hundred; None: there is none.

        Of predictions by as many draws as ``card["accept"]["samples"]`` says: a single pass is surer, and more often
        wrong, at the same entropy.
        """
        found: float | None = self.card["accept"]["entropy"]
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of standardized images ``(N, C, H, W)``, with the mean scales."""
        if not x.is_floating_point():
            raise ValueError(f"images of {x.dtype}: call predict(), or pass what standardized() makes of them")
        out: Tensor = self.net(x)
        return out

    def standardized(self, images: Tensor) -> Tensor:
        """``(images - mean) / std``, what the network sees.

        Arguments:
            images: one ``(C, H, W)`` or several ``(N, C, H, W)``; bytes from black (0) to white (255), or, of a data
                set that was not in bytes, floating point in its units.
        """
        images = self._checked(images).to(self.mean.device)
        low, high = self.card["input"]["range"]
        values = images.float()
        if images.dtype == torch.uint8 and not self.card["input"]["bytes"]:
            values = low + values / 255 * (high - low)
        shape = (1, -1, 1, 1)
        return (values - self.mean.view(shape)) / self.std.view(shape)

    def predict(self, images: Tensor, samples: int = 30, **options: Any) -> Prediction:
        """Probabilities, entropy and mutual information of images as they are.

        Arguments:
            images: as for :meth:`standardized`.
            samples: draws of the scales; 0: a single pass with their means.
            options: further ones of :func:`bayesnorm.predict`.
        """
        return predict(self.net, self.standardized(images), samples, **options)

    def _checked(self, images: Tensor) -> Tensor:
        images = images[None] if images.dim() == 3 else images
        channels, height, width = self.image_size
        free = bool(self.card["per_pixel"])  # classes of pixels: any height and width
        if images.dim() != 4 or images.size(1) != channels or not (free or images.shape[2:] == (height, width)):
            size = f"({channels}, {'H, W' if free else f'{height}, {width}'})"
            raise ValueError(
                f"images of shape {tuple(images.shape)}: {self.name} takes {size}, or (N, ...): resize them"
            )
        if images.dtype != torch.uint8 and (self.card["input"]["bytes"] or not images.is_floating_point()):
            raise ValueError(f"images of {images.dtype}: pass torch.uint8, 0 is black and 255 is white")
        return images


def available(folder: str | Path | None = None) -> list[str]:
    """Names of the networks that :func:`load` finds.

    Arguments:
        folder: where `bayesnorm publish` wrote; None: what comes with this package.
    """
    return sorted(path.stem for path in _folder(folder).glob("*.json"))


def load(name: str, folder: str | Path | None = None, device: torch.device | str = "cpu") -> Pretrained:
    """A trained network, ready to predict; its files are checked against their SHA-256.

    Arguments:
        name: one of :func:`available`.
        folder: where `bayesnorm publish` wrote; None: what comes with this package.
        device: where it goes.
    """
    place = _folder(folder)
    known = available(folder)
    if name not in known:
        where = "this version of bayesnorm" if folder is None else f"{place}"
        listed = (
            f"choose {', '.join(known)}" if known else "train one and `bayesnorm publish` it, or name another folder"
        )
        raise DataError(f"{where} has no pretrained network {name!r}: {listed}")
    card = _card(place / f"{name}.json")
    return assemble(card, _content(place / f"{name}.safetensors", card)).to(device)


def assemble(card: dict[str, Any], content: bytes) -> Pretrained:
    """The network of a card, with the tensors of a safetensors file in it."""
    name = f"{card['name']}.safetensors"
    channels, height, width = card["input"]["size"]
    example = torch.zeros(1, channels, height, width) if _wants_example(card) else None
    with torch.random.fork_rng([]):
        net = Description.from_dict(card["network"]).build((torch.zeros(channels), torch.ones(channels)), example)
    try:
        net.load_state_dict(tensors_of(content, name))
    except RuntimeError as error:
        what = " ".join(str(error).split())
        raise DataError(f"{name} does not fit the network of this version of bayesnorm: {what}") from error
    return Pretrained(net, card).eval()


def _wants_example(card: dict[str, Any]) -> bool:
    """Whether there are statistics whose shape is that of a patch."""
    return (card["network"]["norm"] or {}).get("first_layer") == "patch"


def _folder(folder: str | Path | None) -> Path:
    return WEIGHTS if folder is None else Path(folder)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {REMEDY}") from error


def _card(path: Path) -> dict[str, Any]:
    card = unsealed(_read(path))
    if card is None:
        raise DataError(f"{path} is damaged, its content does not match its checksum: {REMEDY}")
    if card.get("format") != FORMAT:
        raise DataError(f"{path} has format {card.get('format')}, this bayesnorm reads {FORMAT}: use the other version")
    return card


def _content(path: Path, card: dict[str, Any]) -> bytes:
    content = _read(path)
    found, expected = sha256(content), card["file"]["sha256"]
    if found != expected:
        raise DataError(f"{path} is damaged, its SHA-256 is {found}, expected {expected}: {REMEDY}")
    return content
