"""axe-core finds nothing serious on any page, in light and in dark."""

import os
from pathlib import Path

import pytest

from report_site.records import ROOT


@pytest.fixture(scope="session")
def axe():
    path = Path(os.environ.get("SHEAFDEQ_AXE") or ROOT / "build" / "axe" / "package" / "axe.min.js")
    if not path.is_file():
        pytest.skip("needs axe-core: .ci/browser gets it, or SHEAFDEQ_AXE=.../axe.min.js names it")
    return path.read_text(encoding="utf-8")


def findings(page, axe):
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    bad = [entry for entry in result["violations"] if entry["impact"] in ("serious", "critical")]
    return [(entry["id"], entry["nodes"][0]["html"][:160], len(entry["nodes"])) for entry in bad]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_report_pages(browser, report, axe, theme):
    context = browser.new_context(bypass_csp=True, color_scheme=theme)
    page = context.new_page()
    run = next((report / "runs").glob("3d446335*.html"))
    for path in (report / "index.html", run, report / "compare.html"):
        mark = f"#{run.stem}" if path.name == "compare.html" else ""
        page.goto(path.as_uri() + mark)
        page.wait_for_timeout(500)
        assert findings(page, axe) == [], path.name
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_explorer(browser, explorer, axe, theme):
    context = browser.new_context(bypass_csp=True, color_scheme=theme)
    page = context.new_page()
    page.goto(explorer.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    page.locator("#node").fill("5")
    page.locator("#node").press("Enter")
    assert findings(page, axe) == []
    context.close()


def test_the_checker_sees_a_fault(browser, axe):
    context = browser.new_context()
    page = context.new_page()
    page.set_content(
        '<html lang="en"><title>t</title><main><h1>x</h1><img src="data:,"><p '
        'style="color:#aaa">pale</p></main></html>'
    )
    assert {name for name, _, _ in findings(page, axe)} >= {"image-alt", "color-contrast"}
    context.close()
