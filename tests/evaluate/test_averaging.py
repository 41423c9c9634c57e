"""How inputs are cut into pieces."""

import pytest
import torch

from bayesnorm.data import passes
from bayesnorm.evaluate._averaging import pieces


def test_pieces_are_by_the_size_of_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PIXELS", 128)
    assert [len(piece) for piece in pieces(torch.zeros(5, 3, 8, 8), None)] == [2, 2, 1]
    assert [len(piece) for piece in pieces(torch.zeros(5, 64), None)] == [2, 2, 1]
    assert [len(piece) for piece in pieces(torch.zeros(200), None)] == [128, 72]
    assert [len(piece) for piece in pieces([torch.zeros(3, 1), torch.zeros(0, 1), torch.zeros(2, 1)], 2)] == [2, 1, 2]
