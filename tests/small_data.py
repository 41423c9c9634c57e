"""Made-up data sets and networks small enough to train within a test."""

import torch
from torch import Tensor, nn

import bayesnorm
from bayesnorm.data.augment import NOTHING, Augment
from bayesnorm.data.base import IGNORE, Data, Split, make_data
from bayesnorm.train.config import Config
from bayesnorm.train.trainer import Trainer
from bayesnorm.train.world import World

CLASSES = ("a", "b", "c")
ALONE = World(0, 1, torch.device("cpu"))


def split(count: int, size: tuple[int, ...], pixels: bool, generator: torch.Generator) -> Split:
    """Noise, brighter by the class of the image or pixel."""
    channels, height, width = size
    shape = (count, height, width) if pixels else (count, 1, 1)
    targets = torch.randint(0, len(CLASSES), shape, generator=generator)
    images = torch.randn(count, channels, height, width, generator=generator) + targets[:, None]
    if not pixels:
        return Split(images, targets.flatten())
    # From none of the pixels of the first image to half of the last one's.
    ignored = torch.rand(targets.shape, generator=generator) < 0.5 * torch.arange(count).view(-1, 1, 1) / count
    return Split(images, targets.masked_fill(ignored, IGNORE))


def made_up(
    train: int = 48,
    val: int = 20,
    size: tuple[int, ...] = (1, 8, 8),
    pixels: bool = False,
    augment: Augment = NOTHING,
    augment_val: bool = False,
    seed: int = 0,
) -> Data:
    """A data set of three classes; with ``pixels`` a segmentation in which some pixels do not count."""
    generator = torch.Generator().manual_seed(seed)
    parts = [split(count, size, pixels, generator) for count in (train, val, 12)]
    return make_data("made-up", *parts, CLASSES, augment, augment_val)


def classifier() -> nn.Module:
    """Two convolutions and a linear layer: logits ``(N, 3)``."""
    layers = [nn.Conv2d(1, 5, 3), nn.LeakyReLU(0.01), nn.Conv2d(5, 6, 3, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


def segmenter() -> nn.Module:
    """Logits ``(N, 3, H, W)``."""
    return nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 3, 3, padding=1))


def network(norm: str | None, scale: str = "point", pixels: bool = False, seed: int = 0) -> nn.Module:
    """A normalized classifier or segmenter, the same for the same seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = segmenter() if pixels else classifier()
        if norm is None:
            return net
        stats = (torch.zeros(1), torch.ones(1))
        return bayesnorm.convert(net, norm=norm, scale=scale, preserve=False, input_stats=stats, input_size=(1, 8, 8))


def trained(net: nn.Module, data: Data, config: Config, lr: float, steps: int, world: World = ALONE) -> Trainer:
    """A trainer after so many steps."""
    trainer = Trainer(net, data, config, lr, world)
    for _ in range(steps):
        if trainer.batch == len(trainer.batches):
            trainer.next_epoch()
        trainer.step()
    return trainer


def state(net: nn.Module) -> dict[str, Tensor]:
    """A copy of all tensors of a network."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest relative distance of two states, tensor by tensor."""
    assert list(a) == list(b)
    with torch.no_grad():
        return max(float((a[k].double() - b[k]).norm() / b[k].double().norm().clamp(min=1e-3)) for k in a)
