"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, in the package itself."""

from __future__ import annotations

import torch

from ..errors import DataError
from .augment import Augment
from .base import Data, Split, divide, make_data
from .stream import Purpose

TEST_SEED = 0
"""The test set is the same for every split seed."""


def digits(split_seed: int = 0) -> Data:
    """A fifth for testing; the rest 90/10 into training and validation by seed. Shifts of one pixel.

    >>> data = digits()
    >>> len(data.train), len(data.val), len(data.test)
    (1294, 144, 359)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("the digits come with scikit-learn: pip install 'bayesnorm[cli]'") from error
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1)
    whole = Split(images, torch.tensor(found.target, dtype=torch.int64))
    rest, test = divide(whole, 0.8, TEST_SEED, Purpose.TEST_SPLIT)
    train, val = divide(rest, 0.9, split_seed)
    return make_data("digits", train, val, test, tuple("0123456789"), Augment(shift=1))
