import sys

import pytest
import torch
from sklearn.datasets import load_digits

from bayesnorm.data.augment import Augment
from bayesnorm.data.digits import digits
from bayesnorm.errors import DataError


def samples(*splits):
    images = torch.cat([split.images for split in splits]).flatten(1)
    targets = torch.cat([split.targets for split in splits])
    return sorted(map(tuple, torch.cat([images, targets[:, None]], 1).tolist()))


def test_every_digit_is_in_one_split():
    data, found = digits(), load_digits()
    expected = [(*map(float, pixels), float(label)) for pixels, label in zip(found.data, found.target, strict=True)]
    assert samples(data.train, data.val, data.test) == sorted(expected)
    assert (len(data.train), len(data.val), len(data.test)) == (1294, 144, 359)
    assert data.classes == tuple("0123456789")
    assert data.augment == Augment(shift=1)


def test_test_set_is_the_same_for_every_seed():
    first, other = digits(0), digits(1)
    assert torch.equal(first.test.images, other.test.images)
    assert samples(first.train, first.val) == samples(other.train, other.val)
    assert samples(first.val) != samples(other.val)
    assert digits(1).digest() == other.digest()


def test_missing_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="pip install"):
        digits()
