"""What an image shows, how sure the network is, and whether to believe it: python examples/predict_image.py IMAGE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torch import Tensor

import bayesnorm
from bayesnorm.data.folder import FORMATS
from bayesnorm.data.image import check_depth, read, to_tensor
from bayesnorm.errors import BayesnormError, DataError


def fitted(path: Path, size: tuple[int, int, int]) -> Tensor:
    """The middle of an image file, scaled to ``(C, H, W)``; uint8."""
    image = read(path, FORMATS)
    check_depth(path, image)
    from PIL import ImageOps  # read has said so if there is no Pillow

    channels, height, width = size
    colours = image.convert("RGBA").convert("RGB" if channels == 3 else "L")
    return to_tensor(ImageOps.fit(colours, (width, height)))


def described(net: bayesnorm.models.Pretrained, image: Tensor, samples: int, threshold: float | None) -> list[str]:
    """The prediction in lines."""
    out = net.predict(image, samples)
    probs, classes = out.probs[0].topk(min(3, len(net.classes)))
    names = [net.classes[index] for index in classes.tolist()]
    width = max(map(len, names))
    entropy, mutual = out.entropy.item(), out.mutual_info.item()
    lines = [f"{name:{width}} {100 * prob:6.2f} %" for name, prob in zip(names, probs.tolist(), strict=True)]
    lines.append(f"entropy {entropy:.3f} nats, of which {mutual:.3f} from not knowing the scales (mutual information)")
    if threshold is None:
        draws = net.card["accept"]["samples"]
        return [*lines, f"no advice: give a --threshold (what the network has, it has for {draws} draws)"]
    advice = f"accept: {names[0]}" if entropy <= threshold else "reject: ask somebody else"
    return [*lines, f"{advice} (threshold of the entropy {threshold:.3f})"]


def main() -> None:
    """Read the options, predict, print."""
    parser = argparse.ArgumentParser(description="Predict what an image shows, with uncertainty.")
    parser.add_argument(
        "image", type=Path, help="an image file of any size; its middle is scaled to the network's size"
    )
    parser.add_argument("--name", default="allcnn-cifar10", help="pretrained network [%(default)s]")
    parser.add_argument("--folder", type=Path, help="where `bayesnorm publish` wrote it, if it is one of yours")
    parser.add_argument("--samples", type=int, help="draws of the scales [as many as the network's threshold is of]")
    parser.add_argument(
        "--threshold", type=float, help="largest entropy that is accepted [1 %% error on validation images]"
    )
    given = parser.parse_args()
    try:
        net = bayesnorm.models.load(given.name, given.folder)
        if net.card["per_pixel"]:
            raise DataError(f"{given.name} predicts pixels: choose one that predicts images")
        draws = net.card["accept"]["samples"]
        samples = draws if given.samples is None else given.samples
        known = net.threshold if samples == draws else None  # of other averages it tells nothing
        threshold = known if given.threshold is None else given.threshold
        print("\n".join(described(net, fitted(given.image, net.image_size), samples, threshold)))
    except (BayesnormError, ValueError) as error:
        sys.exit(f"predict_image: {error}")


if __name__ == "__main__":
    main()
