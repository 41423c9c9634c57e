import itertools
import re

import pytest

from bayesnorm.train.methods import NORMS, TABLE, method_name, settings_of

SETTINGS = [
    (norm, scale, project)
    for norm, scale, project in itertools.product(NORMS, ("point", "noise", "bayes"), (False, True))
    if norm != "none" or (scale == "point" and not project)
]


@pytest.mark.parametrize(("norm", "scale", "project"), SETTINGS)
def test_a_name_says_the_settings(norm, scale, project):
    found = settings_of(method_name(norm, scale, project))
    assert found == {"norm": norm, "scale": scale, "project": project}


def test_names_differ():
    assert len({method_name(*settings) for settings in SETTINGS}) == len(SETTINGS)


def test_the_table_of_the_paper():
    assert TABLE == ("none", "batch", "batch+projection", "weight+projection+bayes", "analytic+projection+bayes")
    assert settings_of("batch") == {"norm": "batch", "scale": "point", "project": False}
    assert settings_of("analytic+projection+bayes") == {"norm": "analytic", "scale": "bayes", "project": True}


def test_without_a_norm_there_is_nothing_to_project():
    assert method_name("none", "point", True) == "none"


@pytest.mark.parametrize(
    "name", ["", "layer", "batch+bayes+projection", "batch+point", "none+projection", "batch+", "batch+bayes+bayes"]
)
def test_another_name_is_refused(name):
    with pytest.raises(ValueError, match=re.escape(f"unknown method {name!r}: choose a norm (none, batch,")) as caught:
        settings_of(name)
    assert "\n" not in str(caught.value)
