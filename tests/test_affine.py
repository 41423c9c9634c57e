"""``y * factor + summand``: values, gradients, and what may be overwritten."""

import pytest
import torch
from torch.autograd import forward_ad

from bayesnorm._affine import scaled

SHAPES = [((3, 4, 5, 5), (3, 4, 1, 1), (1, 4, 1, 1)), ((3, 4), (3, 4), (1, 4)), ((3, 4, 5), (3, 4, 1), (3, 4, 1))]


def given(shapes, last: bool, zero: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    y, factor, summand = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    y = y.contiguous(memory_format=torch.channels_last) if last and y.dim() == 4 else y
    return [y, factor, summand * (0 if zero else 1)]


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_derivatives(shapes, last, zero):
    values = [value.requires_grad_() for value in given(shapes, last, zero)]
    y, factor, summand = values
    torch.testing.assert_close(scaled(y, factor, summand), y * factor + summand)
    assert torch.autograd.gradcheck(scaled, values)
    assert torch.autograd.gradgradcheck(scaled, values)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients_without_a_graph_of_their_own(shapes, last):
    values = [value.requires_grad_() for value in given(shapes, last, False)]
    y, factor, summand = values
    grads = [torch.autograd.grad(out.sin().sum(), values) for out in (scaled(*values), y * factor + summand)]
    torch.testing.assert_close(*grads, check_stride=False)


def test_only_without_gradients_is_y_overwritten():
    y, factor, summand = given(SHAPES[0], False, False)
    before = y.clone()
    kept = scaled(y, factor.clone().requires_grad_(), summand)
    assert torch.equal(y, before)
    with torch.no_grad():
        over = scaled(y, factor, summand)
    assert over.data_ptr() == y.data_ptr()
    torch.testing.assert_close(over, kept.detach())


def test_under_vmap():
    y, factor, summand = given(SHAPES[0], False, False)
    many = torch.stack([summand, 2 * summand])
    torch.testing.assert_close(torch.vmap(scaled, (None, None, 0))(y, factor, many)[1], y * factor + 2 * summand)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of the decompositions of torch itself
def test_forward_mode():
    values = given(SHAPES[0], False, False)
    tangents = [torch.randn_like(value) for value in values]
    with forward_ad.dual_level():
        found = scaled(*(forward_ad.make_dual(v, t) for v, t in zip(values, tangents, strict=True)))
        tangent = forward_ad.unpack_dual(found).tangent
    (y, factor, _), (dy, dfactor, dsummand) = values, tangents
    torch.testing.assert_close(tangent, dy * factor + y * dfactor + dsummand)
