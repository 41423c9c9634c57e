"""The page in a real browser: it shows everything, and pointer, keyboard, legend, tables and themes work."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import run, segmented
from selenium import webdriver
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from bayesnorm.report.html.page import CONTENTS, page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
EVIL = "<script>document.title='broken'</script> & \"quotes\""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    runs = [run("bayes"), run("batch", bayes=False), run(EVIL, epochs=30)]
    ten = [run(f"run {index}", bayes=index % 2 == 0, epochs=1200) for index in range(10)]
    nothing: Any = {"history": [], "result": None, "evaluation": None, "examples": None, "robustness": None}
    for name, summaries in (
        ("report", runs),
        ("ten", ten),
        ("bare", [run("bare", **nothing)]),
        ("masks", [run("cells", examples=segmented())]),
    ):
        (folder / f"{name}.html").write_text(page(summaries, "A title"), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def size(browser: Chrome, width: int, height: int) -> None:
    # A window has a least width; what is emulated has none.
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def scheme(browser: Chrome, value: str) -> None:
    features = {"features": [{"name": "prefers-color-scheme", "value": value}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)


@pytest.fixture
def shown(browser: Chrome, pages: Path) -> Chrome:
    size(browser, 1400, 1000)
    scheme(browser, "light")
    browser.get((pages / "report.html").as_uri())
    browser.execute_script("localStorage.clear()")
    browser.refresh()
    return browser


def one(within: Chrome | WebElement, selector: str) -> WebElement:
    return within.find_element(By.CSS_SELECTOR, selector)


def every(within: Chrome | WebElement, selector: str) -> list[WebElement]:
    return within.find_elements(By.CSS_SELECTOR, selector)


def background(browser: Chrome) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("name", ["report", "ten", "bare", "masks"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_no_error_and_nothing_wider_than_the_screen(browser: Chrome, pages: Path, name: str, width: int) -> None:
    size(browser, width, 740)
    browser.get((pages / f"{name}.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.title == "A title"
    root = "document.scrollingElement"
    assert browser.execute_script(f"return {root}.scrollWidth <= innerWidth")
    browser.execute_script("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.execute_script(f"return {root}.scrollWidth <= innerWidth")


def test_every_section_shows_what_belongs_to_it(shown: Chrome) -> None:
    inside = {
        "results": (".tiles > div", "table.metrics strong"),
        "runs": ("tbody tr",),
        "training": ("#train-nll .line", "#val-nll .line", "#val-accuracy .mark", "#train-nll .dashed"),
        "calibration": ("#reliability-mc30 .guide", "#confidence-mc30 .line"),
        "coverage": ("#coverage-mc30-entropy .line", "#coverage-top-mc30-entropy .line"),
        "noise": ("#noise-0 .strip", "#noise-2 .strip", ".key"),
        "examples": (".cards img", ".bars li", ".wrong", ".right"),
        "robustness": ("#noise-accuracy .line", "#attack-accuracy .line"),
        "configuration": ("table", "details"),
        "environment": ("table",),
    }
    assert set(inside) == set(CONTENTS)
    for section, selectors in inside.items():
        for selector in selectors:
            found = every(shown, f"#{section} {selector}")
            assert found, (section, selector)
            assert found[0].is_displayed(), (section, selector)
    assert shown.execute_script("return [...document.images].every((image) => image.naturalWidth === 4)")


def test_a_name_is_shown_as_it_is(shown: Chrome) -> None:
    assert every(shown, ".legend .name")[2].text == EVIL
    assert shown.title == "A title"


def test_hovering_shows_the_values_of_all_runs(shown: Chrome) -> None:
    plot = one(shown, "#val-nll .plot")
    assert not every(shown, ".tip")
    ActionChains(shown).move_to_element(plot).perform()
    lines = one(plot, ".tip").text.splitlines()
    epoch = int(lines[0].removeprefix("epoch "))
    assert 10 <= epoch <= 20
    assert dict(zip(lines[1::2], map(float, lines[2::2]), strict=True)) == pytest.approx(
        {name: 1.25 * factor * (0.05 + 2.0 / epoch) for name, factor in (("bayes", 1.0), ("batch", 1.5), (EVIL, 1.0))},
        rel=1e-3,
    )
    assert one(plot, ".cursor").is_displayed()
    ActionChains(shown).move_to_element(one(shown, "h1")).perform()
    assert not every(shown, ".tip, .cursor")


def test_arrow_keys_read_a_chart_aloud(shown: Chrome) -> None:
    plot, said = one(shown, "#reliability-mc30 .plot"), one(shown, "#said")
    assert plot.get_attribute("tabindex") == "0"
    assert said.get_attribute("aria-live") == "polite"

    def press(*keys: str) -> str:
        ActionChains(shown).send_keys(*keys).perform()
        return str(said.get_property("textContent")).replace("\N{NO-BREAK SPACE}", " ")

    shown.execute_script("arguments[0].focus()", plot)
    last = press(Keys.END)
    assert last.startswith("confidence 96.67 %; bayes: 91.00 % (n = 800); batch, single pass: 91.00 % (n = 800)")
    assert press(Keys.ARROW_LEFT).startswith("confidence 90.00 %; bayes: 84.33 % (n = 100)")
    assert press(Keys.HOME) == "confidence 3.33 %"
    assert press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT) == "confidence 16.67 %"
    assert "no value here" in one(plot, ".tip").text
    press(Keys.ESCAPE)
    assert not every(plot, ".tip")


def test_arrow_keys_read_a_heat_map(shown: Chrome) -> None:
    plot, said = one(shown, "#noise-0 .plot"), one(shown, "#said")
    shown.execute_script("arguments[0].focus()", plot)
    ActionChains(shown).send_keys(Keys.ARROW_DOWN).perform()
    assert said.get_property("textContent") == "features.0; channel 5, 1 of 6: 0.2"
    ActionChains(shown).send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT).perform()
    assert said.get_property("textContent") == "features.2; channel 10, 2 of 12: 0.3"
    ActionChains(shown).move_to_element(every(plot, ".strip")[2]).perform()
    assert one(plot, ".tip").text.splitlines() == ["classifier", "channel 1, 2 of 3", "0.12"]


def test_the_legend_hides_a_run_everywhere(shown: Chrome) -> None:
    button = every(shown, ".legend button")[1]
    curves = every(shown, '#val-nll [data-run="1"], #noise-accuracy [data-run="1"]')
    assert len(curves) == 2
    assert all(curve.is_displayed() for curve in curves)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(curve.is_displayed() for curve in curves)
    ActionChains(shown).move_to_element(one(shown, "#val-nll .plot")).perform()
    assert "batch" not in one(shown, ".tip").text
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert all(curve.is_displayed() for curve in curves)


def test_tables_are_sorted_by_a_column(shown: Chrome) -> None:
    table = one(shown, "table.metrics")
    column = [head.text for head in every(table, "thead th")].index("NLL")

    def values() -> list[float]:
        return [float(every(row, "th, td")[column].text.split()[0]) for row in every(table, "tbody tr")]

    before = values()
    button = every(table, "thead button")[column]
    button.click()
    assert values() == sorted(before) != before
    assert every(table, "thead th")[column].get_attribute("aria-sort") == "ascending"
    button.click()
    assert values() == sorted(before, reverse=True)


def test_switches_choose_what_is_shown(shown: Chrome) -> None:
    assert not one(shown, "#coverage-single-entropy").is_displayed()
    one(shown, "#coverage label[for=coverage-0]").click()
    assert one(shown, "#coverage-single-entropy").is_displayed()
    assert not one(shown, "#coverage-mc30-entropy").is_displayed()
    one(shown, "label[for=score-single-1]").click()
    assert one(shown, "#coverage-single-max_prob").is_displayed()
    one(shown, "#coverage label[for=coverage-2]").click()
    assert one(shown, "#coverage-mc30-max_prob").is_displayed()  # the choice is kept


def test_themes(shown: Chrome) -> None:
    light = background(shown)
    button = one(shown, "#theme")
    assert button.text == "Dark theme"
    button.click()
    dark = background(shown)
    assert dark != light
    assert button.text == "Light theme"
    shown.refresh()
    assert background(shown) == dark  # remembered
    shown.execute_script("localStorage.clear()")
    scheme(shown, "dark")
    shown.refresh()
    assert background(shown) == dark
    one(shown, "#theme").click()
    assert background(shown) == light


def test_it_works_without_a_script(browser: Chrome, pages: Path) -> None:
    size(browser, 1400, 1000)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((pages / "report.html").as_uri())
        assert one(browser, "#val-nll .line").is_displayed()
        assert not one(browser, "#theme").is_displayed()
        one(browser, "label[for=robustness-1]").click()
        assert one(browser, "#noise-nll .line").is_displayed()
        assert not one(browser, "#noise-accuracy .line").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
