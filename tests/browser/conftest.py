"""A real browser: Debian's chromium driven by Playwright. Without either, these tests are skipped
and say why.

``SHEAFDEQ_CHROMIUM`` names another browser binary; ``SHEAFDEQ_AXE`` the file axe.min.js of the
accessibility checker.
"""

import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from report_site.records import ROOT, generated, hostile
from sheafdeq import SheafDEQ
from sheafdeq.asynchronous import Schedule
from sheafdeq.data.graph import Graph
from sheafdeq.explorer import Actor, Scene, explore
from sheafdeq.models import SheafCascade
from sheafdeq.report.collection import collect
from sheafdeq.report.selection import select, summarise
from sheafdeq.report.site import build_site
from sheafdeq.training.config import TrainingConfig

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium():
    named = os.environ.get("SHEAFDEQ_CHROMIUM")
    return named or next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        None,
    )


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need playwright (pip install playwright)"
    )
    binary = chromium()
    if binary is None:
        pytest.skip(
            "the browser tests need chromium (apt-get install chromium, or "
            "SHEAFDEQ_CHROMIUM=/path/to/it)"
        )
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=binary, args=FLAGS)
        yield started
        started.close()


def until(page, expression, seconds=30):
    """Wait for an expression to become true. (Playwright's own waiting evaluates text, which the
    pages' policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(30)


def eventually(page, holds, seconds=30):
    """Wait until ``holds()`` is true: a page reacts to a click after the click has returned."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "never true"
        page.wait_for_timeout(30)
    return True


def expect(locator):
    """Playwright's own assertion about a locator, which waits for it."""
    from playwright.sync_api import expect as waiting

    waiting.set_options(timeout=30_000)
    return waiting(locator)


class Watched:
    """A page that remembers what must not happen."""

    def __init__(self, page):
        self.page, self.problems, self.requests = page, [], []
        page.on(
            "console",
            lambda message: (
                self.problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on(
            "dialog",
            lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        page.on("request", self._asked)

    def _asked(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.requests.append(request.url)

    def open(self, path, mark=""):
        self.page.goto(Path(path).resolve().as_uri() + mark)
        return self.page


@pytest.fixture
def watched(browser):
    """A fresh page; at the end nothing may have been asked of another host, and the console must be
    silent."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    made = Watched(context.new_page())
    yield made
    context.close()
    assert made.requests == []
    assert made.problems == []


def build(folder, out):
    def configuration(record):
        return TrainingConfig.of_record(record.config, record.id).payload()

    return build_site(
        collect([folder]), out, summarise=summarise, select=select, configuration=configuration
    ).out


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The report of the repository's own records."""
    return build(ROOT / "results", tmp_path_factory.mktemp("report") / "site")


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory):
    """A report with a record made of markup."""
    folder = tmp_path_factory.mktemp("hostile")
    hostile(folder / "runs")
    for number in range(8):
        generated(folder / "runs", number)
    return build(folder / "runs", folder / "site")


@pytest.fixture(scope="session")
def explorer(tmp_path_factory):
    """Two untrained models on sixty nodes, three films each."""
    torch.manual_seed(0)
    n = 60
    ring = torch.arange(n)
    index = torch.cat([torch.stack([ring, (ring + hop) % n]) for hop in (1, 2, 7)], dim=1)
    graph = Graph.build(torch.randn(n, 2), torch.cat([index, index.flip(0)], dim=1))
    target = ring % 3

    def accuracy(outputs):
        return 100 * float((outputs.argmax(1) == target).double().mean())

    actors = [
        Actor("SheafDEQ", SheafDEQ(2, 3, 3, 4, steps=10), accuracy),
        Actor("Sheaf Cascade", SheafCascade(2, 3, 3, 4, levels=2, level_steps=5), accuracy),
    ]
    scene = Scene("a ring & <b>chords</b>", graph, target, 3, "accuracy (%)")
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    return explore(scene, actors, path, iterations=30, schedule=Schedule(3, 2))
