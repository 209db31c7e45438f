"""``normscope watch`` in a real browser: points of a process that trains, long runs, overlays, the still page."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from monitor.live.runs import begin, large, written
from normscope.monitor.live.export import export
from normscope.monitor.live.feed import LiveFeed, run_folders
from normscope.monitor.live.server import WatchServer

TRAINING = """
import sys, time
import torch
from torch import nn
from normscope.monitor import Monitor

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
x, y = torch.randn(32, 4), torch.randint(0, 3, (32,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Monitor(model, (x, y), run=sys.argv[1], optimizer=optimizer, every=5, budget=float("inf")) as monitor:
    for step in range(5000):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss.item())
        time.sleep(0.02)
"""
#: Milliseconds within which the page must have answered.
RESPONSIVE = 200


class Page:
    """The page in the browser."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any, seconds: float = 30) -> Any:
        """Wait until a script returns something true, and return that."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"never came: {script}; the page says {self.complaints()}"
            time.sleep(0.05)
        return found

    def points(self, key: str) -> int:
        """Return how many points the longest line of a chart has, once it is drawn."""
        return int(self.until("return normscope.watch?.chart(arguments[0])?.points", key))

    def complaints(self) -> list[str]:
        """Return what the browser complained about."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def text(self, selector: str) -> str:
        """Return the text of the first element a selector names."""
        return " ".join(self.driver.find_element(By.CSS_SELECTOR, selector).text.split())


@pytest.fixture
def visit(browser: Chrome) -> Iterator[Callable[..., Page]]:
    """Return a function that opens an address at some width, in light or dark."""

    def open_page(url: str, *, width: int = 1440, dark: bool = False, script: bool = True) -> Page:
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        browser.get_log("browser")
        browser.get(url)
        return Page(browser)

    yield open_page
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    browser.get("about:blank")  # ends the stream


@pytest.fixture
def serve() -> Iterator[Callable[..., WatchServer]]:
    """Return a function that serves runs, read often."""
    servers: list[WatchServer] = []

    def start(*paths: Path) -> WatchServer:
        feed = LiveFeed(run_folders(paths, wait=True))
        feed.poll()
        servers.append(WatchServer(feed))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.turns(6)
def test_points_arrive_while_a_real_process_trains(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], tmp_path: Path
) -> None:
    """From before it begins to after it was killed; a pause holds the picture, and no point is missed after it."""
    page = visit(serve(tmp_path / "run").url)
    assert "waiting for the run to begin" in page.text("#runs")
    process = subprocess.Popen([sys.executable, "-c", TRAINING, str(tmp_path / "run")])
    try:
        first = page.points("loss")
        assert page.until("return normscope.watch.chart('loss').points > arguments[0] + 5", first)
        assert "live" in page.text("#runs .state")
        assert page.until("return /steps.s/.test(document.querySelector('#runs .measures').textContent)")
        page.driver.find_element(By.ID, "pause").click()
        held = page.points("loss")
        page.until("return /Go on \\(\\d+ new\\)/.test(document.getElementById('pause').textContent)")
        assert page.points("loss") == held
        page.driver.find_element(By.ID, "pause").click()
        page.until("return normscope.watch.chart('loss').points > arguments[0]", held)
    finally:
        process.kill()
        process.wait()
    assert page.complaints() == []
    # what is drawn is what was written, number by number
    written_points = LiveFeed([tmp_path / "run"])
    written_points.poll()
    steps, values = written_points.runs[0].lines["train/loss"].series()
    page.until("return normscope.watch.state.runs[0].status.points === arguments[0]", written_points.runs[0].count)
    page.until("return normscope.watch.chart('loss').plot.data[0].at(-1) === arguments[0]", int(steps[-1]))
    drawn = page.run("return normscope.watch.chart('loss').plot.data")
    lines = [[v for v in line if v is not None] for line in drawn[1:]]
    assert any(line == pytest.approx(values.tolist(), rel=1e-5) for line in lines)
    cells = page.run("return [...document.querySelectorAll('tr[data-name=\"norm/0\"] td')].map((c) => c.textContent)")
    assert cells[1] == "attained"


@pytest.mark.turns(2)
def test_a_resumed_run_is_drawn_anew(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], tmp_path: Path
) -> None:
    """Points after the checkpoint go; a metric that is new gets a chart without loading the page again."""
    folder = written(tmp_path / "run", {s: {"norm/a": float(s), "norm/b": 1.0} for s in range(30)})
    page = visit(serve(folder).url)
    assert page.points("norm") == 30
    page.run("window.mark = 1")
    run = begin(folder, step=10)
    run.log({"norm/a": 5.0, "product/folded_log10": 150.0}, step=11)
    page.until("return normscope.watch.chart('norm').points === 12")
    page.until("return normscope.watch.chart('product')?.points === 1")
    assert page.run("return window.mark") == 1
    assert "1.000×10¹⁵⁰" in page.run("return document.querySelector('[data-key=product] table').textContent")
    run.log({"norm/a": float("nan")}, step=12)
    page.until("return /not finite, first at step 12/.test(document.querySelector('[data-key=norm]').textContent)")
    assert page.complaints() == []


TIMED = """
const [action, done] = arguments;
const chart = normscope.watch.chart("norm");
const over = chart.plot.over;
const box = over.getBoundingClientRect();
const at = (name, x) => over.dispatchEvent(new MouseEvent(name, {
  clientX: box.left + x * box.width, clientY: box.top + 60, bubbles: true, cancelable: true, button: 0,
  movementX: 5 }));
const acts = {
  hover: (i) => at("mousemove", 0.2 + 0.1 * i),
  zoom: (i) => { at("mousedown", 0.1 + 0.02 * i); at("mousemove", 0.6); at("mouseup", 0.6); },
  whole: () => document.getElementById("whole").click(),
  log: () => chart.figure.querySelector("button.log").click(),
  search: (i) => {
    const field = chart.figure.querySelector("input");
    field.value = `blocks.${i}.`;
    field.dispatchEvent(new Event("input"));
  },
  theme: () => document.getElementById("theme").click(),
};
(async () => {
  const times = [];
  for (let i = 0; i < 6; i += 1) {
    const begin = performance.now();
    acts[action](i);
    await new Promise((after) => requestAnimationFrame(() => setTimeout(after)));
    times.push(performance.now() - begin);
    await new Promise((after) => setTimeout(after, 30));
  }
  done(times);
})();
"""


@pytest.fixture(scope="session")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 100,000 points and 200 layers."""
    return large(tmp_path_factory.mktemp("long") / "run")


@pytest.mark.turns(6)
def test_a_hundred_thousand_points_and_two_hundred_layers_stay_responsive(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], long_run: Path
) -> None:
    """Every action is drawn within a fifth of a second; the least of six tries, for the machine may be busy."""
    page = visit(serve(long_run).url)
    assert 1000 < page.points("loss") <= 2000
    assert page.points("norm") <= 200
    assert page.run("return normscope.watch.chart('norm').plot.series.length") == 201
    assert page.run("return Math.max(...normscope.watch.chart('loss').plot.data[1])") == 50.0  # the peak
    page.driver.set_script_timeout(30)
    for action in ("hover", "zoom", "whole", "log", "search", "theme"):
        times = page.driver.execute_async_script(TIMED, action)
        assert min(times) < RESPONSIVE, f"{action}: {times}"
        if action in ("zoom", "whole"):
            assert bool(page.run("return normscope.watch.page.window()")) == (action == "zoom")
    assert page.complaints() == []


@pytest.mark.turns(5)
def test_looking_closer_brings_every_point(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], long_run: Path
) -> None:
    """All charts follow a drag across one; the keyboard does the same."""
    page = visit(serve(long_run).url)
    page.points("norm")
    page.points("loss")
    over = page.driver.find_element(By.CSS_SELECTOR, "figure[data-key=loss] .u-over")
    wide = over.size["width"]
    ActionChains(page.driver).move_to_element_with_offset(over, -wide // 4, 0).click_and_hold().move_by_offset(
        12, 0
    ).release().perform()
    window = page.until("return normscope.watch.page.window()")
    assert 0 < window[1] - window[0] < 10_000
    for key in ("loss", "norm"):
        scale = page.run("const {min, max} = normscope.watch.chart(arguments[0]).plot.scales.x; return [min, max]", key)
        assert scale == pytest.approx(window)
    # among the points now are steps that follow each other: nothing is thinned
    narrow = [int(window[0]), int(window[0]) + 500]
    page.run("normscope.watch.page.zoom(arguments[0])", narrow)
    page.until(
        "const x = normscope.watch.chart('loss').plot.data[0]; "
        "return x.length > 400 && x.length < 600 && x[9] - x[8] === 1"
    )
    assert "Steps" in page.text("#said")
    box = page.driver.find_element(By.CSS_SELECTOR, "figure[data-key=loss] .plot")
    box.send_keys(Keys.ARROW_RIGHT)
    page.until(
        "const said = document.querySelector('figure[data-key=loss] .spoken').textContent; "
        "return /^step \\d+: .*train.loss .* own/.test(said)"
    )
    assert "a number logged by the training loop" in page.run(
        "return document.querySelector('figure[data-key=loss] .tip').textContent"
    )
    box.send_keys("-")
    page.until("const w = normscope.watch.page.window(); return w && w[1] - w[0] > 900")
    box.send_keys(Keys.ESCAPE)
    page.until("return normscope.watch.page.window() === null")
    assert page.complaints() == []


@pytest.mark.turns(2)
def test_numbers_a_log_scale_cannot_show_are_told(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], tmp_path: Path
) -> None:
    """They are not dropped in silence; the plain scale shows them."""
    page = visit(serve(written(tmp_path / "run", {s: {"norm/a": s - 1.0} for s in range(5)})).url)
    page.points("norm")
    assert "2 numbers are not above 0" in page.text("figure[data-key=norm]")
    page.driver.find_element(By.CSS_SELECTOR, "figure[data-key=norm] button.log").click()
    assert "not above 0" not in page.text("figure[data-key=norm]")
    assert page.run("return normscope.watch.chart('norm').plot.data[1]") == [-1, 0, 1, 2, 3]


@pytest.mark.turns(2)
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_runs_overlaid_fit_their_width(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], tmp_path: Path, width: int, dark: bool
) -> None:
    """Colours are runs: other in each, the same in every chart; nothing sticks out."""
    for name, count in (("first", 40), ("second-with-a-name-of-some-length", 25)):
        points = {s: {"train/loss": 1 / (s + 1), "norm/a": s + 1.0, "norm/b": 2.0} for s in range(0, count, 2)}
        written(tmp_path / "runs" / name, points)
    page = visit(serve(tmp_path / "runs").url, width=width, dark=dark)
    page.points("loss")
    page.run("document.querySelector('figure[data-key=norm]').scrollIntoView()")
    page.points("norm")
    assert page.run("return document.documentElement.scrollWidth") == width
    colours = page.run(
        "return ['loss', 'norm'].map((key) => normscope.watch.chart(key).plot.series.slice(1).map((s) => s.stroke()))"
    )
    assert len(set(colours[0])) == 2
    assert set(colours[0]) == set(colours[1])
    assert page.run("return normscope.watch.chart('norm').plot.series.slice(1).map((s) => Boolean(s.dash))") == [
        True, True, False, False,
    ]  # fmt: skip
    buttons = page.driver.find_elements(By.CSS_SELECTOR, "figure[data-key=norm] .legend button")
    buttons[0].click()
    assert page.run("return normscope.watch.chart('norm').plot.series.slice(1).map((s) => s.show)") == [
        True, True, False, False,
    ]  # fmt: skip
    assert page.complaints() == []


def test_the_server_goes_and_the_page_says_so(
    visit: Callable[..., Page], serve: Callable[..., WatchServer], tmp_path: Path
) -> None:
    """What is shown stays."""
    server = serve(written(tmp_path / "run", {s: {"norm/a": 1.0} for s in range(5)}))
    page = visit(server.url)
    assert page.points("norm") == 5
    server.close()
    page.until("return /out of reach/.test(document.getElementById('said').textContent)")
    assert page.points("norm") == 5


@pytest.mark.parametrize("script", [True, False])
def test_the_still_page(visit: Callable[..., Page], tmp_path: Path, script: bool) -> None:
    """From a file, with charts that zoom; without script its numbers can be read."""
    feed = LiveFeed([written(tmp_path / "run", {s: {"train/loss": 1 / (s + 1), "norm/a": 7.25} for s in range(50)})])
    feed.poll()
    page = visit(export(feed, tmp_path / "still.html").as_uri(), script=script)
    if script:  # where charts are drawn, their numbers are folded away
        assert page.text("section[data-key=norm] table") == ""
        page.run("document.querySelector('section[data-key=norm] details.numbers > summary').click()")
    assert "7.25" in page.text("section[data-key=norm] table")
    assert "attained" in page.text("section[data-key=norm] table")
    if script:
        assert page.points("norm") == 50
        page.run("normscope.watch.page.zoom([10, 20])")
        page.until("return normscope.watch.chart('norm').plot.scales.x.max === 20")
        assert page.complaints() == []
