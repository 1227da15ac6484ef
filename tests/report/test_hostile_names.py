"""Names from records reach terminals, Markdown, spreadsheets, LaTeX and figures without acting
there."""

import csv
import io
import os

import pytest

from sheafdeq.cli import main
from sheafdeq.printable import csv_text, markdown_text, mathtext, printable
from sheafdeq.records import read_records, write_sealed
from sheafdeq.report.grid import fitted
from sheafdeq.report.tables import FORMATS, Cell, Row, Table, render

HOSTILE = [
    "\x1b]0;title\x07\x1b[2J",
    "a\nb",
    "a\rb",
    "\u202eevil",
    "\x9b31m",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    " =1",
    "<script>alert(1)</script>",
    "![x](http://tracker/x.png)",
    "[x](javascript:alert(1))",
    "a|b",
    "`rm`",
    "**b**",
    r"$\frac{$",
    "\\",
    "$",
    "{",
    "http://example.org",
    "[a]: http://b",
    "\ud800",
]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", HOSTILE)
def test_tables_print_names_and_nothing_else(form, name):
    cell = Cell((1.0, 0.5, 1.5), ".1f", (1, 1), note=name)
    plain = Table(
        "t",
        ("c",),
        (Row("m", "ours", (Cell((1.0, 0.5, 1.5), ".1f", (1, 1), note="n"),)),),
        ("note",),
    )
    text = render(Table(name, (name,), (Row(name, name, (cell,)),), (name,)), form)
    text.encode("utf-8")
    assert all(c.isprintable() or c == "\n" for c in text)
    assert text.count("\n") == render(plain, form).count("\n")  # no name adds a line
    if form == "html":
        assert "<script" not in text
    if form == "markdown":
        assert "<" not in text
        assert "](" not in text.replace("\\](", "")
        assert "]:" not in text.replace("\\]:", "")
        row = next(line for line in text.splitlines() if line.startswith("| ") and "1.0" in line)
        assert row.replace("\\\\", "").replace("\\|", "").count("|") == 4
    if form == "csv":
        for words in csv.reader(io.StringIO(text)):
            assert all(word[:1] not in ("=", "+", "-", "@") for word in words)


def test_numbers_and_ordinary_names_are_left_alone():
    for text in ("98.6 [96.9, 99.1] 5/5 (1st)", "SheafDEQ, shift 1.3", "max_epochs=300", "d_out †"):
        assert printable(text) == markdown_text(text) == csv_text(text) == mathtext(text) == text
    for number in ("-3.5", "+2", "-1e-05", "-50%"):
        assert csv_text(number) == number


@pytest.mark.parametrize("name", HOSTILE)
def test_figures_draw_any_name(name):
    import matplotlib.pyplot as plt

    from sheafdeq.report.style import style

    with style():
        figure, axis = plt.subplots()
        axis.set_title(mathtext(name))
        figure.canvas.draw()  # raises where a name is taken for mathematics
        assert axis.get_title() == mathtext(name)
        plt.close(figure)


def test_a_record_with_a_formula_for_a_name_is_drawn(tmp_path):
    """The whole way: a diagnostics record of the repository under another title."""
    from pathlib import Path

    from sheafdeq.errors import RecordError
    from sheafdeq.records import read_sealed
    from sheafdeq.report.figures import draw_all, read_sources, write_drawings

    folder = Path(__file__).parents[2] / "results" / "diagnostics"
    payload = read_sealed(sorted(folder.glob("*.json"))[0])
    payload["model"]["title"] = payload["label"] = r"$\frac{$"
    (tmp_path / "diagnostics").mkdir()
    write_sealed(tmp_path / "diagnostics" / "a.json", payload)
    assert write_drawings(
        draw_all(read_sources(tmp_path), ["continued", "settling"]), tmp_path / "out", "test"
    )
    for broken in ({**payload, "continued": 5}, {**payload, "task": []}, {**payload, "model": {}}):
        write_sealed(tmp_path / "diagnostics" / "a.json", broken)
        with pytest.raises(RecordError, match=r"a\.json"):
            draw_all(read_sources(tmp_path), ["continued"])


def test_an_unreadable_folder_is_named_and_counted(tmp_path, monkeypatch, capsys):
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path):  # permissions do not bind the superuser, so the refusal is simulated
        if os.path.basename(os.fspath(path)) == "closed":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main(["tables", "all", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "closed: the folder cannot be read (Permission denied)" in shown.err
    assert "1 file(s) or folder(s) could not be read" in shown.out
    from sheafdeq.errors import RecordError

    with pytest.raises(RecordError, match="closed: the folder cannot be read"):
        read_records(tmp_path)


def test_tables_fit_the_terminal():
    header = ["model", "parameters", *(f"a column with a long title {k}" for k in range(8))]
    rows = [
        [f"model {k}", "1,234", *("a cell that says a good deal" for _ in range(8))]
        for k in range(3)
    ]
    wide = fitted(header, rows, None)
    assert max(map(len, wide.splitlines())) > 200
    for width in (40, 80, 120):
        lines = fitted(header, rows, width, right=(1,), rules=True).splitlines()
        assert max(map(len, lines)) <= width
        end = " ".join(lines[-8:])
        assert "not shown for want of width" in end
        assert "--wide" in end
        text = "".join("".join(lines).split())
        assert "model2" in text
    assert fitted(header[:2], [row[:2] for row in rows], 80) == "model    parameters\n" + "".join(
        f"model {k}  1,234\n" for k in range(3)
    )


def test_commands_fit_a_terminal_of_eighty_columns(monkeypatch, capsys):
    import sheafdeq.report.grid as screen

    monkeypatch.setattr(screen.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    for command in (["tasks"], ["models"], ["tables", "parameters"]):
        assert main(command) == 0
        narrow = capsys.readouterr().out
        assert max(map(len, narrow.splitlines())) <= 80, command
        assert main([*command, "--wide"]) == 0
        assert len(max(capsys.readouterr().out.splitlines(), key=len)) >= len(
            max(narrow.splitlines(), key=len)
        )


def test_the_progress_bar_has_a_width_at_eighty_columns():
    from rich.console import Console

    from sheafdeq.training.loop import EpochMetrics
    from sheafdeq.training.progress import BarProgress

    stream = io.StringIO()
    bar = BarProgress(Console(file=stream, width=80, force_terminal=True, color_system=None))
    bar.start(
        "community level 10, sheaf-cascade levels=8 level_steps=8 hidden=24 edge_hidden=24 "
        "gain=0.2, seed 42",
        0,
        2000,
    )
    bar.update(EpochMetrics(2000, 0.12345, 98.765, 99.123, 900, 0.01))
    bar.bar.refresh()
    bar.finish("done")
    line = max(
        (part for part in stream.getvalue().replace("\r", "\n").split("\n") if "2000/2000" in part),
        key=len,
    )
    assert line.count("━") + line.count("╸") + line.count("╺") >= 10
    assert "best 99.12" in line
