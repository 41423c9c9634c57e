"""Point, noise and Bayes: what multiplies the normalized output, and its KL divergence."""

from .base import Scale as Scale
from .bayes import Bayes as Bayes
from .bayes import BayesScale as BayesScale
from .noise import Noise as Noise
from .noise import NoiseScale as NoiseScale
from .point import Point as Point
from .point import PointScale as PointScale

ScaleSpec = Point | Noise | Bayes


def parse(scale: str | ScaleSpec) -> ScaleSpec:
    """A scale by name or by its specification.

    >>> parse("noise")
    Noise(sigma_u=0.05, sigma_v=0.05)
    """
    if isinstance(scale, ScaleSpec):
        return scale
    named: dict[str, ScaleSpec] = {"point": Point(), "noise": Noise(), "bayes": Bayes()}
    if not isinstance(scale, str) or scale not in named:
        raise ValueError(
            f"scale={scale!r}: choose 'point', 'noise' or 'bayes', or pass Point(), Noise(...), Bayes(...)"
        )
    return named[scale]
