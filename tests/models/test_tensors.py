"""The reader against the package that defines the format."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save

from bayesnorm.errors import DataError
from bayesnorm.models._tensors import TYPES, tensors_of


def some():
    """A tensor of each type; a scalar, an empty one, one whose memory is in another order."""
    generator = torch.Generator().manual_seed(0)
    found = {str(dtype): (1000 * torch.randn(3, 5, generator=generator)).to(dtype) for dtype in TYPES.values()}
    return {**found, "scalar": torch.tensor(7), "empty": torch.zeros(0, 4), "odd": torch.arange(3).half()}


def with_header(header, values=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


def test_what_safetensors_writes_is_read_to_the_last_bit():
    expected = some()
    found = tensors_of(save(expected, {"format": "pt"}), "x")
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_tensors_have_memory_of_their_own():
    found = tensors_of(save({"a": torch.zeros(4), "b": torch.zeros(4)}), "x")
    found["a"].add_(1)
    assert found["b"].sum() == 0


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        pickle.dumps({"a": 1}),
        (1 << 62).to_bytes(8, "little") + b"{}",
        with_header([1, 2]),
        with_header({"a": 3}),
        with_header({"a": {"dtype": "F32"}}, bytes(8)),
        with_header({"a": {**F32, "dtype": "COMPLEX"}}, bytes(8)),
        with_header({"a": {**F32, "shape": [3]}}, bytes(8)),
        with_header({"a": {**F32, "shape": ["2"]}}, bytes(8)),
        with_header({"a": {**F32, "shape": [-1, -2]}}, bytes(8)),
        with_header({"a": {**F32, "data_offsets": [-8, 0]}}, bytes(8)),
        with_header({"a": {**F32, "data_offsets": [4, 12]}}, bytes(8)),
        with_header({"a": F32}, bytes(7)),
        save(some())[:-1],
        b"\x05\x00\x00\x00\x00\x00\x00\x00" + b"[" * 5,
    ],
)
def test_anything_else_is_refused_in_one_line(content):
    with pytest.raises(DataError, match=r"^x is no safetensors file that can be read here \(.*\): restore it$"):
        tensors_of(content, "x")
