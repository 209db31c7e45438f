"""A real browser for the tests of the page: Debian's Chromium, installed if it is missing and that is allowed."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from normscope.analysis import analyze
from normscope.core.finding import Certainty, Finding, Severity
from normscope.core.result import Result
from normscope.core.value import Kind, Value
from normscope.report.html import save_html
from normscope.zoo.catalogue import build
from report.samples import deep, opaque
from report.samples import result as sample

PROGRAMS = ("chromium", "chromedriver")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
FINDINGS = [Finding("NS101", Severity.WARNING, "hidden.0.0", "a bias has no effect", {}, Certainty.PROVED, "", "drop")]


def _install() -> None:
    """Install the browser and its driver, one process at a time."""
    lock = Path(tempfile.gettempdir()) / "normscope-chromium.lock"
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if all(map(shutil.which, PROGRAMS)):
            return
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium", "chromium-driver"],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                pytest.fail(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}", pytrace=False)


@pytest.fixture(scope="session")
def programs() -> tuple[str, str]:
    """Return the browser and its driver; without them the page is not tested, and that is a failure."""
    if not all(map(shutil.which, PROGRAMS)):
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.fail(
                "the page is tested in a real browser: install the Debian packages chromium and chromium-driver",
                pytrace=False,
            )
        _install()
    browser, driver = (shutil.which(name) or "" for name in PROGRAMS)
    return browser, driver


@dataclass
class Page:
    """A page that is open in the browser."""

    driver: Chrome
    result: Result
    path: Path

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        """Return the elements a selector names."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> Any:
        """Return the first element a selector names."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the trimmed text of elements, shown or not."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", selector)

    def complaints(self) -> list[str]:
        """Return what the browser complained about."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def browser(programs: tuple[str, str]) -> Iterator[Chrome]:
    """Start the browser once, with a profile of its own."""
    profile = tempfile.mkdtemp(prefix="normscope-browser-")
    options = ChromeOptions()
    options.binary_location = programs[0]
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}", "--window-size=1440,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(programs[1], log_output=subprocess.DEVNULL))
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


@cache
def _result(name: str) -> Result:
    """Return the result of a network, made as quickly as it can be."""
    generator = torch.Generator().manual_seed(0)
    quick: dict[str, Any] = {"tolerance": 0.5, "points": 1, "ascent": 0, "stacked": False}
    if name == "mlp":
        model = build("relu10", norm="bn", width=16, in_features=8)
        return analyze(model.eval(), torch.randn(32, 8, generator=generator), name="zoo:relu10", **quick)
    if name == "resnet50":
        model = build("resnet50", width=4, classes=10, image_size=32)
        return analyze(model.eval(), torch.randn(2, 3, 32, 32, generator=generator), name="zoo:resnet50", **quick)
    if name == "transformer":
        model = build("gpt", width=8, layers=6, heads=2, vocabulary=11)
        return analyze(model.eval(), torch.randint(0, 11, (4, 6), generator=generator), name="zoo:gpt", **quick)
    if name == "odd":  # nothing proved, operations without a rule, and names without a place to break
        words = "aten.special_function_of_a_long_name" * 4
        infinite = Value(math.inf, Kind.CERTIFIED)
        holes = tuple(replace(o, op=words, reason=words) for o in opaque().opaque)
        (normalizer,) = sample().normalizers
        return sample(
            model={"name": words, "class": words},
            messages=(words,),
            coverage=replace(opaque(), opaque=holes),
            end_to_end={"global": infinite, "lower": Value.of(2.0, Kind.LOWER)},
            normalizers=(replace(normalizer, name=words),),
        )
    return deep(1000)


@pytest.fixture
def visit(browser: Chrome, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Page]:
    """Return a function that opens the page of a network at some width, in light or dark."""
    folder = tmp_path_factory.mktemp("pages")

    def open_page(
        name: str, *, width: int = 1440, dark: bool = False, script: bool = True, twice: bool = False
    ) -> Page:
        bare = _result(name)
        result = replace(bare, findings=tuple(FINDINGS))
        shown = {"first": result, "second": bare} if twice else result
        path = save_html(shown, folder / f"{name}.html")
        result.save(folder / f"{name}.json")
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        browser.get_log("browser")
        browser.get(path.as_uri())
        page = Page(browser, Result.from_dict(json.loads((folder / f"{name}.json").read_text())), path)
        if script:
            page.run("try { localStorage.clear() } catch {}")
        return page

    return open_page
