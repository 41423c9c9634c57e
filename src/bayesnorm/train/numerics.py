"""Settings of torch that decide which numbers come out, put back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from .config import Config


def _precisions(backend: Any, *operations: str) -> list[Any]:
    """What has an ``fp32_precision``, as far as this version of torch has it: how products in float32 are taken."""
    places = [getattr(backend, operation, None) for operation in operations]
    return [place for place in places if hasattr(place, "fp32_precision")]


def _on_gpu() -> list[Any]:
    return _precisions(torch.backends.cuda, "matmul") + _precisions(torch.backends.cudnn, "conv", "rnn")


def _on_cpu() -> list[Any]:
    return _precisions(torch.backends.mkldnn, "matmul", "conv", "rnn")


class _Products:
    """Settings of products in float32, by torch's older names and by its newer ones, which have to agree.

    The older ones cannot be read where a caller has set the newer ones; then they are as torch has them by default.
    """

    def __init__(self) -> None:
        self.newer = [(place, place.fp32_precision) for place in _on_gpu() + _on_cpu()]
        try:
            cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
            self.older: tuple[str, bool, bool] | None = (
                torch.get_float32_matmul_precision(),
                cudnn.allow_tf32,
                matmul.allow_tf32,
            )
        except RuntimeError:
            self.older = None

    def choose(self, tf32: bool) -> None:
        """In single precision, on a GPU in TF32 if asked."""
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        for place in _on_gpu():
            place.fp32_precision = "tf32" if tf32 else "ieee"
        for place in _on_cpu():
            place.fp32_precision = "ieee"

    def restore(self) -> None:
        precision, convolutions, products = self.older or ("highest", True, False)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products
        torch.set_float32_matmul_precision(precision)
        for place, value in self.newer:
            place.fp32_precision = value


@contextmanager
def numerics(config: Config, device: torch.device) -> Iterator[None]:
    """Inside: deterministic kernels, no choice of kernels by timing, the configured precision, generators of the seed.

    The caller's settings and generators are restored, also after an exception.
    """
    cudnn, products = torch.backends.cudnn, _Products()
    filling: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.benchmark,
        cudnn.deterministic,
        filling.fill_uninitialized_memory,
    )
    # cuBLAS reads this when it starts; without it deterministic mode refuses matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cuda = [] if device.type != "cuda" else [torch.cuda.current_device() if device.index is None else device.index]
    # Its first call imports half of torch's compiler; an interrupt there would be followed by another error below.
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with torch.random.fork_rng(cuda):
            torch.manual_seed(config.seed)
            if config.deterministic:
                torch.use_deterministic_algorithms(True)
                cudnn.deterministic, cudnn.benchmark = True, False
                # Nothing here reads memory before it is written; filling it would add a kernel to every operation.
                filling.fill_uninitialized_memory = False
            products.choose(config.precision == "tf32")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.benchmark, cudnn.deterministic = before[2:4]
        filling.fill_uninitialized_memory = before[4]
        products.restore()
