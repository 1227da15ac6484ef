"""The report without a browser: what is written, what is linked, what cannot be injected, and how
long it takes."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_site.records import HOSTILE, ROOT, generated, hostile
from sheafdeq.cli import main
from sheafdeq.errors import InputError
from sheafdeq.report.collection import collect
from sheafdeq.report.selection import select, summarise
from sheafdeq.report.site import build_site
from sheafdeq.report.site.charts import thinned
from sheafdeq.report.site.environment import page_name, script_json
from sheafdeq.report.site.words import certificate_sentences, clip, toml_of
from sheafdeq.training.config import TrainingConfig

if __import__("sys").version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Page(HTMLParser):
    """Elements of a page, as a browser would see them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def configuration(record):
    return TrainingConfig.of_record(record.config, record.id).payload()


def site_of(tmp_path, *folders):
    return build_site(
        collect(folders),
        tmp_path / "site",
        summarise=summarise,
        select=select,
        configuration=configuration,
    )


def pages(site):
    return sorted(site.out.rglob("*.html"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The report of the repository's own records."""
    return site_of(tmp_path_factory.mktemp("stored"), ROOT / "results")


def test_every_run_of_the_repository_has_a_page(stored):
    runs = list((ROOT / "results" / "runs").glob("*/record.json"))
    assert stored.runs >= len(runs) >= 40
    assert not stored.excluded
    for path in runs:
        page = Page((stored.out / "runs" / f"{path.parent.name}.html").read_text())
        assert path.parent.name in page.text


def test_links_stay_inside_and_lead_somewhere(stored):
    known = {path.name.removesuffix(".html") for path in (stored.out / "runs").glob("*.html")}
    for path in pages(stored):
        page = Page(path.read_text())
        for link in page.links:
            target, _, mark = link.partition("#")
            assert "//" not in target, f"{path.name} asks another host for {link}"
            if target and target != "data:,":
                assert (path.parent / target).resolve().is_file(), f"{path.name} links to {link}"
            if target.endswith("compare.html") and mark:
                assert set(mark.split(",")) <= known


def test_no_page_has_an_inline_script_or_style(stored):
    for path in pages(stored):
        for tag, attributes in Page(path.read_text()).tags:
            assert tag != "style"
            assert "style" not in attributes
            assert not [name for name in attributes if name.startswith("on")]
            assert tag != "script" or attributes.get("src")


def test_the_overview_shows_the_terminal_table_with_its_marks(stored):
    from sheafdeq.records import read_records
    from sheafdeq.report.tables import paper_table

    table = paper_table("community", summarise(read_records(ROOT / "results")), select)
    text = Page((stored.out / "index.html").read_text()).text
    assert table.title in text
    for row in table.rows:
        for cell in row.cells:
            if cell.spread is not None:
                assert format(cell.spread[0], cell.form) in text
    for note in table.notes:
        assert " ".join(note.split()) in text
    assert "missing" in text


def test_each_number_of_ours_leads_to_its_runs(stored):
    html = (stored.out / "index.html").read_text()
    table = re.search(
        r'<table class="sortable grouped" data-table="community">.*?</table>', html, re.DOTALL
    ).group()
    rows = re.findall(r'<tr class="ours">(.*?)</tr>', table, re.DOTALL)
    numbers = [
        cell
        for row in rows[:-1]
        for cell in re.findall(r'<td data-v="[^"]+".*?</td>', row, re.DOTALL)
    ]
    assert numbers
    for cell in numbers:
        assert re.search(r'<a href="(runs/[0-9a-f]{64}\.html|compare\.html#[0-9a-f,]+)">', cell)


def test_a_run_page_says_what_the_studies_say(stored):
    name = next(
        path.parent.name for path in (ROOT / "results" / "runs").glob("3d446335*/record.json")
    )
    text = Page((stored.out / "runs" / f"{name}.html").read_text()).text
    assert "6 starts end in 6 different states" in text
    assert "not certified" in text
    assert "0 of 9 graphs at rest" in text
    # code version
    assert "eeb094be8eba45e0567ef48742f363210aaa514b20b31020ebf31f87b2dfd2c2" in text
    charts = json.loads(
        (stored.out / "data" / f"{name}.js")
        .read_text()
        .removeprefix("sheafdeqReceive(")
        .removesuffix(");\n")
    )
    assert set(charts["charts"]) >= {"validation", "loss", "update", "score", "staleness"}


def test_the_configuration_file_repeats_the_run(stored):
    for path in (ROOT / "results" / "runs").glob("*/record.json"):
        config = json.loads(path.read_text())["payload"]["config"]
        text = (stored.out / "configs" / f"{path.parent.name}.toml").read_text()
        assert TrainingConfig.parse(tomllib.loads(text)) == TrainingConfig.of_record(
            config, "record"
        )


def test_hostile_records_are_text(tmp_path):
    runs = tmp_path / "runs"
    hostile(runs)
    generated(runs, 0)
    site = site_of(tmp_path, runs)
    assert site.runs == 2
    assert not list(tmp_path.glob("*.html")), "the id of a record must not choose the folder"
    for path in pages(site):
        html = path.read_text()
        assert len(html) < 200_000, "a megabyte of text in a record is cut"
        page = Page(html)
        assert not [tag for tag, _ in page.tags if tag in ("img", "svg", "iframe")]
        assert all(attributes.get("src") for tag, attributes in page.tags if tag == "script")
        assert not [link for link in page.links if link.startswith("javascript:")]
    assert HOSTILE[:40] in Page((site.out / "index.html").read_text()).text
    for path in (site.out / "data").glob("*.js"):
        assert "<" not in path.read_text()


def test_a_damaged_record_is_listed_and_fails_the_command(tmp_path, capsys):
    runs = tmp_path / "runs"
    generated(runs, 0)
    generated(runs, 1)
    victim = next(runs.glob("*/record.json"))
    victim.write_bytes(victim.read_bytes()[:-40])
    assert main(["report", str(runs), "--results", str(runs), "--out", str(tmp_path / "site")]) == 1
    assert "excluded" in capsys.readouterr().err
    text = Page((tmp_path / "site" / "index.html").read_text()).text
    assert "1 record left out" in text
    assert "truncated or altered" in text


def test_a_sealed_record_that_is_no_run_is_listed(tmp_path):
    generated(tmp_path / "runs", 3, config={"seed": 1})
    site = site_of(tmp_path, tmp_path / "runs")
    assert site.runs == 0
    assert "a run" in site.excluded[0]


def test_a_foreign_folder_is_not_overwritten(tmp_path):
    generated(tmp_path / "runs", 0)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="not made by"):
        site_of(tmp_path, tmp_path / "runs")
    assert (tmp_path / "site" / "thesis.tex").read_text() == "mine"


def test_made_again_nothing_old_stays(tmp_path):
    generated(tmp_path / "a", 0)
    generated(tmp_path / "b", 1)
    first = site_of(tmp_path, tmp_path / "a")
    before = {path.name for path in (first.out / "runs").iterdir()}
    again = site_of(tmp_path, tmp_path / "b")
    assert before.isdisjoint(path.name for path in (again.out / "runs").iterdir())


def test_the_same_records_give_the_same_bytes(tmp_path):
    generated(tmp_path / "runs", 0)
    first = site_of(tmp_path / "one", tmp_path / "runs")
    second = site_of(tmp_path / "two", tmp_path / "runs")
    for path in first.out.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (second.out / path.relative_to(first.out)).read_bytes()


def test_no_runs_is_an_error_with_a_remedy(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "site")]) == 1
    assert "sheafdeq train" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none"), "--out", str(tmp_path / "site")]) == 2


@pytest.mark.slow
def test_two_thousand_runs_take_less_than_a_minute(tmp_path):
    runs = tmp_path / "runs"
    for number in range(2000):
        generated(runs, number)
    start = time.process_time()  # what the work costs; a busy machine may take longer by the clock
    site = site_of(tmp_path, runs)
    assert site.runs == 2000
    assert time.process_time() - start < 60


# ---------------------------------------------------------------------- small pieces


def test_thinning_keeps_the_extremes():
    values = [0.0] * 5000
    values[1234], values[4321] = 9.0, -9.0
    x, y = thinned(values)
    assert len(x) <= 330
    assert (1234, 9.0) in list(zip(x, y, strict=True))
    assert (4321, -9.0) in list(zip(x, y, strict=True))
    assert x == sorted(x)
    assert x[-1] == 4999
    assert thinned([1.0, None, float("nan"), "x", True]) == (
        [0, 1, 2, 3, 4],
        [1.0, None, None, None, None],
    )


def test_certificates_never_claim_more_than_their_verdict():
    proved = certificate_sentences(
        {
            "verdict": "certified",
            "level": "global",
            "rate": 0.5,
            "metric": "m",
            "domain": "d",
            "delays": True,
        }
    )
    assert any("exactly one equilibrium" in text for text in proved)
    ball = certificate_sentences(
        {
            "verdict": "certified",
            "level": "ball",
            "rate": 0.5,
            "metric": "m",
            "domain": "d",
            "radius": 0.1,
        }
    )
    assert not any(
        "exactly one equilibrium, and iteration reaches it from every" in text for text in ball
    )
    assert any("Nothing is said of others" in text for text in ball)
    open_ = certificate_sentences({"verdict": "not certified", "level": "none"})
    assert not any("Proved:" in text for text in open_)
    found = certificate_sentences(
        {"verdict": "refuted", "witness": {"proved": False, "distance": 1.0}}
    )
    assert found[0].startswith("Found numerically")


def test_names_of_pages_are_digests():
    assert page_name("a" * 64) == "a" * 64
    assert re.fullmatch(r"[0-9a-f]{64}", page_name("../../etc/passwd"))
    assert page_name("x") != page_name("y")


def test_script_json_cannot_end_its_element():
    text = script_json({"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["a"].startswith("</script>")


def test_toml_round_trip_of_odd_values():
    values = {
        "a": 'quote " and \\ and \n',
        "b": [1, 2.5, True],
        "c d": {"e.f": "x\x7f"},
        "g": float("inf"),
        "none": None,
    }
    back = tomllib.loads(toml_of(values))
    assert back == {
        "a": 'quote " and \\ and \n',
        "b": [1, 2.5, True],
        "c d": {"e.f": "x\x7f"},
        "g": float("inf"),
    }


def test_clip_says_what_was_cut():
    assert clip("abc") == "abc"
    assert clip("x" * 1000, 10) == "x" * 10 + "… (1,000 characters)"


def test_the_report_needs_no_torch():
    """Made from records alone: the pages' code imports neither torch nor matplotlib."""
    import subprocess
    import sys

    code = (
        "import sys, sheafdeq.report.site; print(sorted({'torch', 'matplotlib', 'jinja2'} & "
        "set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_assets_are_packaged():
    root = Path(__import__("sheafdeq").__file__).parent / "report" / "site"
    assert {path.name for path in (root / "assets").iterdir()} >= {
        "site.css",
        "site.js",
        "chart.js",
        "compare.js",
        "run.js",
    }
