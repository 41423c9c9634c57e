"""Time of a training step on the cells, 512 x 512 and batch 2, with our kernels of large filters and with torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from options import Options
from rounds import interleaved, milliseconds, peak, ratio, repeated
from rows import Rows
from torch import Tensor
from trainers import SideBySide, together

from bayesnorm.data import Augment, Split, make_data
from bayesnorm.data.base import Data
from bayesnorm.models.cell_net import CHANNELS, KERNEL
from bayesnorm.train import Config
from bayesnorm.train.fused import large
from bayesnorm.train.fused.convolution import convolution
from bayesnorm.train.numerics import numerics

METHODS = ("none", "batch+projection", "weight+projection+bayes", "analytic+projection+bayes")
PROTOCOL = 3000 * 6
"""Steps of 3000 epochs of 12 images in batches of two."""
NEVER = 1000
"""Taps that no filter has."""
STEPS = {"method": "method", "kernels": "kernels", "ms": "ms", "minutes": "3000 epochs, min", "allocated_mib": "MiB"}
FILTERS = {
    "filter": "filter",
    "part": "part",
    "ours_ms": "ours, ms",
    "torch_ms": "torch's",
    "torch_over_ours": "/ ours",
}


def run(options: Options) -> None:
    """Steps of each method with either kernels in the same rounds, then every convolution of the network alone."""
    config = Config(batch=2, engine="captured", precision="bf16" if options.device.type == "cuda" else "fp32", clip=1.0)
    sources = ("ours", "torch's") if options.device.type == "cuda" else ("torch's",)
    data = drawn(32 if options.tiny else 512).to(options.device)
    with numerics(config, options.device):
        rows = Rows("cells", STEPS, ("method", "kernels"), options.device, options.json)
        for method in METHODS:
            for row in measure(method, sources, data, config, options):
                rows.add(row)
        table = Rows("filters", FILTERS, ("filter", "part"), options.device, options.json)
        if options.device.type == "cuda":
            for row in filters(options):
                table.add(row)


def drawn(side: int) -> Data:
    """Twelve images that mean nothing, deformed as the cells are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (12, 1, side, side), dtype=torch.uint8, generator=generator)
    split = Split(x, torch.randint(0, 2, (12, side, side), generator=generator))
    augment = Augment(hflip=True, vflip=True, deform=8.0, spacing=side // 8)
    return make_data("random", split, split[:2], split[:2], ("background", "cell"), augment)


def measure(
    method: str, sources: tuple[str, ...], data: Data, config: Config, options: Options
) -> list[dict[str, Any]]:
    """With the kernels of each source, one after the other in every round."""
    groups: dict[str, SideBySide] = {}
    memory = {}
    for source in sources:
        smallest = large.SMALLEST if source == "ours" else NEVER
        with mock.patch.object(large, "SMALLEST", smallest), peak(options.device) as memory[source]:
            groups[source] = together(method, data, [config], "cells", options.width * 2 if options.tiny else 1.0)
            groups[source].steps(1)  # the graph is made here
    count = 1 if options.tiny else max(1, options.steps // 10)
    times = interleaved({s: partial(g.steps, count) for s, g in groups.items()}, options.rounds, options.device)
    for group in groups.values():
        group.release()
    return [
        {
            "method": method,
            "kernels": source,
            "ms": milliseconds(found),
            "minutes": round(milliseconds(found, 6) * PROTOCOL / 60_000, 2),
            "allocated_mib": memory[source].allocated,
            "reserved_mib": memory[source].reserved,
            "torch_over_ours": ratio(times["torch's"], times.get("ours")),
            "rounds": options.rounds,
            "steps": count,
        }
        for source, found in times.items()
    ]


def filters(options: Options) -> list[dict[str, Any]]:
    """Response, gradient of the input and gradient of the weight of each convolution."""
    rows = []
    before = 1
    for after in CHANNELS:
        for _ in range(2):
            for part, works in _parts(before, after, options.device).items():
                found = {name: repeated(call, 10) for name, call in works.items()}
                for work in found.values():
                    work()
                times = interleaved(found, options.rounds, options.device)
                rows.append(
                    {
                        "filter": f"{before} -> {after}",
                        "part": part,
                        "ours_ms": milliseconds(times["ours"]),
                        "torch_ms": milliseconds(times["torch's"]),
                        "torch_over_ours": ratio(times["torch's"], times["ours"]),
                    }
                )
            before = after
    return rows


def _parts(channels: int, outputs: int, device: torch.device) -> dict[str, dict[str, Callable[[], object]]]:
    """What is timed of a convolution, by ours and by torch."""
    generator = torch.Generator(device).manual_seed(0)
    options = {"dtype": torch.bfloat16, "device": device, "generator": generator}
    x = torch.randn(2, channels, 512, 512, **options).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, channels, KERNEL, KERNEL, **options).contiguous(memory_format=torch.channels_last)
    padded: Callable[[Tensor, Tensor], Tensor] = partial(F.conv2d, padding=KERNEL // 2)
    found: dict[str, dict[str, Callable[[], object]]] = {"response": {}, "input": {}, "weight": {}}
    for name, convolve in (("ours", convolution), ("torch's", padded)):
        found["response"][name] = partial(convolve, x, weight)
        for part in ("input", "weight"):  # of which alone a gradient is wanted
            both = [tensor.detach().requires_grad_(part == who) for who, tensor in (("input", x), ("weight", weight))]
            y = convolve(*both)
            leaf = both[part == "weight"]
            found[part][name] = partial(torch.autograd.grad, y, leaf, torch.ones_like(y), retain_graph=True)
    return found
