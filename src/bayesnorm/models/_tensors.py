"""Tensors from the content of a safetensors file, read with torch alone, as everything that a network needs is.

``length of the header (8 bytes, little endian), header (JSON), values``; the header has for each tensor its type, its
shape, and where its values begin and end behind the header.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


def tensors_of(content: bytes, name: str) -> dict[str, Tensor]:
    """All tensors by name, with memory of their own.

    Arguments:
        content: of the whole file.
        name: of the file, for messages.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        if size > len(content) - 8:
            raise ValueError(f"a header of {size} bytes in a file of {len(content)}")
        header = json.loads(content[8 : 8 + size])
        values = memoryview(bytearray(content))[8 + size :]  # of bytes, torch warns that they cannot be written
        return {key: _tensor(about, values) for key, about in header.items() if key != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{name} is no safetensors file that can be read here ({what}): restore it") from error


def _tensor(about: dict[str, Any], values: memoryview) -> Tensor:
    dtype, shape, (first, last) = TYPES[about["dtype"]], about["shape"], about["data_offsets"]
    fits = min(shape, default=0) >= 0 and last - first == math.prod(shape) * dtype.itemsize
    if not (fits and 0 <= first <= last <= len(values)):
        raise ValueError(f"values {first} to {last} of {len(values)} for {about['dtype']} {shape}")
    if first == last:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(values[first:last], dtype=dtype).reshape(shape).clone()
