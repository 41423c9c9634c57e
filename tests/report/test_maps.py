"""The figure of segmented images shows the pictures of the document, each where its title says."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_runs import examples, run, segmented
from PIL import Image

from bayesnorm.report.drawing import save
from bayesnorm.report.figures import figures_of
from bayesnorm.report.maps import EACH, PARTS, segmentation_maps


def picture(value: int, colour: bool = False) -> str:
    pixels = np.full((4, 6, 3) if colour else (4, 6), value, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def document(count: int = 3) -> dict[str, Any]:
    """Every picture has a grey of its own: ten for each image, one for each part."""

    def entry(index: int) -> dict[str, Any]:
        maps = {part: picture(10 * index + k, part.endswith("_map")) for k, part in enumerate(PARTS)}
        return {"index": index, **maps, "entropy": 0.1, "mutual_info": 0.01}

    told = {"way": "mc30", "classes": ["background", "cell"], "tops": {"entropy": 0.6931, "mutual_info": 0.0123}}
    return {**told, "uncertain": [entry(i) for i in range(count)], "certain": [entry(10 + i) for i in range(count)]}


def grey(axes: Any) -> int:
    (image,) = axes.get_images()
    return round(255 * float(np.asarray(image.get_array()).flat[0]))


def test_a_row_for_each_image_and_a_column_for_each_part(tmp_path: Path) -> None:
    figure = segmentation_maps("_$a", document())
    assert figure is not None
    rows = [figure.axes[start : start + len(PARTS)] for start in range(0, len(figure.axes), len(PARTS))]
    chosen = [*range(EACH), *range(10, 10 + EACH)]
    assert [[grey(axes) for axes in row] for row in rows] == [[10 * i + k for k in range(len(PARTS))] for i in chosen]
    assert [axes.get_title() for axes in rows[0]] == list(PARTS.values())
    labels = [row[0].get_ylabel() for row in rows]
    assert labels == [
        f"{kind} certain\nimage {i}" for kind, i in zip(["least"] * 2 + ["most"] * 2, chosen, strict=True)
    ]
    key = "full colour: entropy 0.69 nats, mutual information 0.012 nats or more"
    assert figure.get_supxlabel() == f"_$a, predicted by MC 30; {key}"
    assert len(save(figure, tmp_path / "maps")) == 2, "a name is no formula"


def test_what_was_not_measured_has_no_column() -> None:
    found = document(1)
    for entry in (*found["certain"], *found["uncertain"]):
        del entry["mutual_info_map"]
    figure = segmentation_maps("a", {**found, "way": "single", "tops": {"entropy": 0.6931}})
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes[:4]] == [*PARTS.values()][:4]
    assert len(figure.axes) == 8
    assert figure.get_supxlabel() == "a, predicted by single pass; full colour: entropy 0.69 nats"


@pytest.mark.parametrize("found", [examples(), {"way": "single", "certain": [], "uncertain": []}])
def test_images_with_one_class_have_no_maps(found: dict[str, Any]) -> None:
    assert segmentation_maps("a", found) is None


def test_a_report_has_them_of_every_run_that_segments() -> None:
    assert "maps" in figures_of([run(examples=segmented())])
    several = figures_of([run("a"), run("b", examples=segmented()), run("c", examples=segmented())])
    assert {name for name in several if name.startswith("maps")} == {"maps2", "maps3"}
