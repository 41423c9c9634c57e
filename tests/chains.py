"""Networks of few layers that the fused engine takes for All-CNN: interpreted, a kernel takes time for each program."""

from torch import nn

from bayesnorm import convert
from bayesnorm.models import AllCNN

SHORT = [(3, 2, 3, 1), (2, 4, 3, 1), (4, 4, 3, 2), (4, 4, 1, 1), (4, 10, 1, 1)]
"""Inputs, outputs, kernel and stride of a layer of each kind that All-CNN has."""
WIDE = [(3, 40, 3, 1), (40, 96, 3, 1), (96, 40, 3, 2), (40, 8, 1, 1), (8, 10, 1, 1)]
"""More channels than a tile has columns, or a block of a sum: 40 leave a rest, 96 do not."""
SUMS = [(3, 2, 3, 1), (2, 2, 3, 1), (2, 4, 3, 2), (4, 4, 3, 1), (4, 4, 3, 2), (4, 10, 1, 1)]
"""From maps of 16 x 16 to 4 x 4: with several blocks of rows in a sample, with one, and with less than one."""
TINY = [(3, 2, 3, 2), (2, 4, 3, 2), (4, 4, 3, 2), (4, 10, 1, 1)]
"""From maps of 8 x 8 to one pixel."""


def chain(layers, norm, scale):
    """All-CNN with these layers, which keep the size of a map where the stride is 1."""
    net, made = AllCNN("same", 1 / 96), []
    for before, after, kernel, stride in layers:
        made += [nn.Conv2d(before, after, kernel, stride, kernel // 2), nn.LeakyReLU(0.01, inplace=True)]
    net.features = nn.Sequential(*made[:-1])
    if norm is None:
        return net
    return convert(net, norm=norm, scale=scale, preserve=False, inplace=True, input_size=(3, 32, 32))
