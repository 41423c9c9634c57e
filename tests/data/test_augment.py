import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chi2, kstest

from bayesnorm.data import stream
from bayesnorm.data.augment import NOTHING, Augment
from bayesnorm.data.stream import Purpose

P_OF_5_SIGMA = 5.7e-7
CELLS = Augment(hflip=True, vflip=True, deform=8.0, spacing=64)
EVERYTHING = Augment(shift=2, hflip=True, vflip=True, deform=2.0, spacing=8)


def rows(count, step=0):
    return stream.rows(0, Purpose.AUGMENT, step, torch.arange(count))


def images(count, channels=3, height=6, width=5):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(0))


def moved(image, dy, dx):
    """Slow and obvious: pixel (y, x) of the result is pixel (y + dy, x + dx), or 0."""
    result = torch.zeros_like(image)
    for y in range(image.size(1)):
        for x in range(image.size(2)):
            if 0 <= y + dy < image.size(1) and 0 <= x + dx < image.size(2):
                result[:, y, x] = image[:, y + dy, x + dx]
    return result


def matches(image, result, candidates):
    return [name for name, candidate in candidates(image).items() if torch.equal(candidate, result)]


def all_shifts(image):
    steps = range(-2, 3)
    return {(dy, dx): moved(image, dy, dx) for dy in steps for dx in steps}


def all_flips(image):
    return {"none": image, "h": image.flip(2), "v": image.flip(1), "both": image.flip(1, 2)}


def blobs(count, size):
    """Masks of a few smooth shapes."""
    coarse = torch.randn(count, 1, size // 16, size // 16, generator=torch.Generator().manual_seed(1))
    return (F.interpolate(coarse, (size, size), mode="bicubic") > 0).long()[:, 0]


def p_value(counts):
    expected = counts.sum() / len(counts)
    return chi2.sf(float(((counts - expected).square() / expected).sum()), len(counts) - 1)


def test_every_result_of_shift_is_a_shift_with_zeros_coming_in():
    before = images(60)
    after, masks = Augment(shift=2)(before, rows(60))
    assert masks is None
    found = [matches(image, result, all_shifts) for image, result in zip(before, after, strict=True)]
    assert {len(names) for names in found} == {1}
    assert len({names[0] for names in found}) > 15


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        (Augment(hflip=True), {"none", "h"}),
        (Augment(vflip=True), {"none", "v"}),
        (Augment(hflip=True, vflip=True), {"none", "h", "v", "both"}),
    ],
)
def test_every_result_of_flips_is_a_flip(augment, expected):
    before = images(60)
    after, _ = augment(before, rows(60))
    found = [matches(image, result, all_flips) for image, result in zip(before, after, strict=True)]
    assert {len(names) for names in found} == {1}
    assert {names[0] for names in found} == expected


def test_flip_and_shift_together():
    def candidates(image):
        flips = (image, image.flip(2))
        return {(index, dx): moved(flips[index], 0, dx) for index in range(2) for dx in range(-1, 2)}

    before = images(40, height=1)
    after, _ = Augment(shift=1, hflip=True)(before, rows(40))
    inside = after.flatten(1).any(1)  # one row: a shift up or down leaves nothing
    for image, result in zip(before[inside], after[inside], strict=True):
        assert len(matches(image, result, candidates)) == 1
    assert 0 < inside.sum() < 40


def test_shifts_are_uniform():
    """An impulse in the middle shows the shift; counts of the 25 shifts by chi-square at 5 sigma."""
    n = 40_000
    before = torch.zeros(n, 1, 5, 5)
    before[:, :, 2, 2] = 1
    after, _ = Augment(shift=2)(before, rows(n))
    assert torch.equal(after.sum((1, 2, 3)), torch.ones(n))
    counts = after.sum((0, 1)).flatten().double()
    assert p_value(counts) > P_OF_5_SIGMA
    for axis in (0, 1):
        line = counts.view(5, 5).sum(axis)
        assert p_value(line) > P_OF_5_SIGMA
        line[0] *= 1.1
        assert p_value(line) < P_OF_5_SIGMA


def test_flips_are_fair_and_independent():
    n = 40_000
    before = torch.zeros(n, 1, 2, 2)
    before[:, :, 0, 0] = 1
    after, _ = Augment(hflip=True, vflip=True)(before, rows(n))
    counts = after.sum((0, 1)).flatten().double()
    assert counts.sum() == n
    assert p_value(counts) > P_OF_5_SIGMA
    counts[0] *= 1.1
    assert p_value(counts) < P_OF_5_SIGMA


@pytest.mark.parametrize("augment", [Augment(hflip=True), Augment(vflip=True), Augment(hflip=True, vflip=True)])
def test_mask_is_flipped_with_its_image(augment):
    masks = torch.randint(0, 5, (30, 6, 5), generator=torch.Generator().manual_seed(0))
    after, moved_masks = augment(masks[:, None].float(), rows(30), masks)
    assert torch.equal(after[:, 0].long(), moved_masks)
    assert not torch.equal(moved_masks, masks)


def test_mask_is_shifted_with_its_image():
    masks = torch.randint(1, 5, (50, 6, 5), generator=torch.Generator().manual_seed(0))
    after, moved_masks = Augment(shift=2)(masks[:, None].float(), rows(50), masks)
    inside = after[:, 0] != 0
    assert torch.equal(after[:, 0].long()[inside], moved_masks[inside])
    assert not torch.equal(moved_masks, masks)


def test_masks_keep_their_values_and_type():
    masks = torch.tensor([0, 1, 7, -100])[torch.randint(0, 4, (20, 32, 32), generator=torch.Generator().manual_seed(0))]
    _, after = EVERYTHING(images(20, height=32, width=32), rows(20), masks)
    assert after.dtype == torch.int64
    assert set(after.unique().tolist()) == {0, 1, 7, -100}


@pytest.mark.parametrize("augment", [Augment(shift=2), Augment(hflip=True), CELLS, EVERYTHING])
def test_rows_alone_decide(augment):
    before, masks = images(12, height=32, width=24), torch.randint(0, 2, (12, 32, 24))
    whole, moved_masks = augment(before, rows(12), masks)
    torch.manual_seed(123)
    order = torch.tensor([5, 0, 7, 7, 11])
    part, moved_part = augment(before[order], rows(12)[order], masks[order])
    assert torch.allclose(part, whole[order], atol=1e-6)
    assert torch.equal(moved_part, moved_masks[order])
    other, _ = augment(before, rows(12, step=1), masks)
    assert not torch.allclose(other, whole)


def test_images_given_are_not_changed():
    before, masks = images(5, height=32, width=32), torch.ones(5, 32, 32, dtype=torch.int64)
    kept = before.clone()
    EVERYTHING(before, rows(5), masks)
    assert torch.equal(before, kept)


@pytest.mark.parametrize("augment", [NOTHING, Augment(deform=0.0, spacing=3)])
def test_nothing_to_do_is_the_identity(augment):
    before, masks = images(5), torch.zeros(5, 6, 5, dtype=torch.int64)
    after, moved_masks = augment(before, rows(5), masks)
    assert torch.equal(after, before)
    assert torch.equal(moved_masks, masks)


def test_tiny_deformation_is_nearly_the_identity():
    before = images(4, height=40, width=30)
    after, masks = Augment(deform=1e-4, spacing=10)(before, rows(4), (before[:, 0] > 0).long())
    assert (after - before).abs().max() < 1e-2
    assert torch.equal(masks, (before[:, 0] > 0).long())


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 80)])
def test_pixel_shows_what_was_at_its_place_plus_the_displacement(height, width):
    """An image whose values are the coordinates is changed by the displacement itself, where that stays inside."""
    augment = Augment(deform=3.0, spacing=16)
    y, x = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    after, _ = augment(torch.stack([x, y]).expand(10, 2, height, width), rows(10))
    place = torch.stack([x, y], -1) + augment.displacement(rows(10), height, width)
    inside = ((place >= 0) & (place <= torch.tensor([width - 1.0, height - 1.0]))).all(-1)
    assert inside.float().mean() > 0.8
    assert (after.permute(0, 2, 3, 1) - place)[inside].abs().max() < 1e-3


def test_edges_are_reflected():
    before = images(20, height=32, width=32)
    after, _ = Augment(deform=10.0, spacing=16)(before, rows(20))
    assert after.isfinite().all()
    assert after.amin() >= before.amin()
    assert after.amax() <= before.amax()
    ones, _ = Augment(deform=10.0, spacing=16)(torch.ones(20, 1, 32, 32), rows(20))
    assert torch.allclose(ones, torch.ones(20, 1, 32, 32), atol=1e-5)


def test_image_and_mask_are_deformed_together():
    """An image made of its mask: thresholded, it is the deformed mask but for pixels at the contours."""
    masks = blobs(8, 256)
    after, moved_masks = CELLS(masks[:, None].float(), rows(8), masks)
    agree = ((after[:, 0] > 0.5).long() == moved_masks).float().mean()
    assert agree > 0.97
    assert (moved_masks != masks).float().mean() > 0.05
    assert 0.3 < moved_masks.float().mean() < 0.7


def test_displacement_at_a_grid_point_is_normal():
    """The corner is a grid point: both of its components are N(0, deform^2), by Kolmogorov-Smirnov at 5 sigma."""
    n = 10_000
    corner = Augment(deform=8.0, spacing=8).displacement(rows(n), 9, 9)[:, 0, 0].double()
    for component in corner.unbind(1):
        assert kstest(component.numpy() / 8.0, "norm").pvalue > P_OF_5_SIGMA
    assert kstest(corner.flatten().numpy() / 8.8, "norm").pvalue < P_OF_5_SIGMA
    both = corner.prod(1) / 64
    assert abs(both.mean()) < 5 / math.sqrt(n)


def test_displacement_is_smooth():
    """From pixel to pixel it changes by far less than it is large."""
    field = CELLS.displacement(rows(8), 512, 512)
    assert field.shape == (8, 512, 512, 2)
    assert 6 < field.std() < 9
    for axis in (1, 2):
        assert field.diff(dim=axis).std() < 8.0 * 2 / 64
        assert field.diff(n=2, dim=axis).abs().max() < 0.2


def test_default_deformation_of_cells_does_not_fold():
    """The determinant of the Jacobian of x + displacement is positive on all but a thousandth of the pixels."""
    field = CELLS.displacement(rows(24), 512, 512)
    dy, dx = torch.gradient(field, dim=(1, 2))
    determinant = (1 + dx[..., 0]) * (1 + dy[..., 1]) - dx[..., 1] * dy[..., 0]
    assert (determinant > 0).float().mean() > 0.999


def test_augmented_images_do_not_hang_on_the_device_generator():
    before = images(4, height=32, width=32)
    torch.manual_seed(0)
    first, _ = EVERYTHING(before, rows(4))
    state = torch.get_rng_state()
    second, _ = EVERYTHING(before, rows(4))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrong", [{"shift": -1}, {"deform": -0.1}, {"spacing": 0}])
def test_values_out_of_range(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        Augment(**wrong)
