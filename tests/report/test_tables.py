from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from report.report_records import record
from sheafdeq.cli import main
from sheafdeq.errors import InputError
from sheafdeq.records import write_sealed
from sheafdeq.report.collection import collect
from sheafdeq.report.selection import (
    READ_EDGE_FEATURES,
    deviations,
    sees_differences,
    select,
    summarise,
)
from sheafdeq.report.tables import (
    FORMATS,
    Cell,
    judged,
    only_columns,
    overview_table,
    paper_numbers,
    paper_table,
    rank,
    render,
    staleness_table,
)
from sheafdeq.training.recipe import recipe_values


def cell(table, title, column, source="ours"):
    found = ""
    for row in table.rows:
        found = row.title or found
        if found == title and row.source == source:
            return row.cells[table.columns.index(column)]
    raise AssertionError(f"no row {title}")


# ---------------------------------------------------------------------- selection


def test_selection_is_by_mean_validation_and_blind_to_test():
    records = [record(test=50.0, validation=90.0, shift=1.2, seed=seed) for seed in (42, 43)]
    records += [
        record(test=99.0, validation=80.0, shift=1.4, seed=42),
        record(test=99.0, validation=95.0, shift=1.4, seed=43),
    ]
    chosen = select(summarise(records))
    assert chosen.options == {"shift": 1.2}
    assert chosen.spread() == (50.0, 50.0, 50.0)


def test_the_papers_protocol_goes_before_deviations():
    records = [record(test=1.0, validation=10.0), record(test=2.0, validation=99.0, max_epochs=10)]
    assert select(summarise(records)).deviations == ()
    assert deviations(records[1]) == ("max_epochs=10",)
    assert deviations(record(test=1, validation=1, penalties={"residual_weight": 2.0})) == (
        "penalties=residual_weight=2",
    )


def test_a_record_older_than_an_option_is_not_taken_for_the_papers_model():
    """One dropout mask a solve, before masks could be drawn for every loop."""
    old, new = (
        record(test=1.0, validation=99.0, model="loop-transformer", shift=None, masks=masks)
        for masks in (None, "loop")
    )
    assert deviations(old) == ("masks=solve",)
    assert deviations(new) == ()
    assert [chosen.records for chosen in summarise([old, new])] == [(old,), (new,)]
    assert deviations(record(test=1.0, validation=1.0)) == ()  # other models have no masks


def test_the_later_of_two_runs_of_one_configuration_counts():
    summaries = summarise(
        [
            record(test=1.0, validation=1.0, finished="2"),
            record(test=5.0, validation=1.0, finished="1"),
        ]
    )
    assert [summary.spread() for summary in summaries] == [(1.0, 1.0, 1.0)]


def test_no_candidates_no_choice():
    assert select([]) is None


# ---------------------------------------------------------------------- ranks


def test_ties_at_the_displayed_precision_share_a_rank():
    assert rank([98.04, 97.96, 90.0, None, 97.0], ".1f") == [1, 1, 4, None, 3]
    assert rank([98.04, 97.94, 90.0], ".1f") == [1, 2, 3]
    assert rank([None, None], ".1f") == [None, None]


# ---------------------------------------------------------------------- the paper's numbers


def test_the_papers_tables_are_complete_and_consistent():
    for name, rows, columns in (("community", 22, 6), ("distributed", 20, 4)):
        paper = paper_numbers(name)
        assert len(paper["full"]) == rows
        for line in [*paper["full"], *paper["compact"]]:
            assert len(line["cells"]) == columns
            for values in line["cells"]:
                if isinstance(values, list):
                    middle, low, high = values
                    assert low <= middle <= high
    spot = {
        (line["model"], line["options"].get("shift")): line["cells"]
        for line in paper_numbers("community")["full"]
    }
    assert spot["sheafdeq", 1.3][-1] == [98.7, 97.9, 98.9]
    energy = next(
        line for line in paper_numbers("distributed")["compact"] if line["family"] == "energygnn"
    )
    assert energy["cells"][-1] == {"missing": "unconverged"}


def test_every_compact_cell_of_the_paper_is_a_cell_of_its_full_table_or_known_not_to_be():
    # One compact cell of the paper (DNSD, level 7: 89.6 [64.7, 92.7]) is in no row of its full
    # table.
    strangers = []
    for name in ("community", "distributed"):
        paper = paper_numbers(name)
        for line in paper["compact"]:
            members = [
                row
                for row in paper["full"]
                if row["model"].startswith(line["family"]) or row["model"] == line["family"]
            ]
            for index, values in enumerate(line["cells"]):
                if values not in [row["cells"][index] for row in members]:
                    strangers.append((line["family"], paper["columns"][index]["title"], values))
    assert strangers == [("dnsd", "L7", [89.6, 64.7, 92.7])]


def test_an_unknown_table_is_named():
    with pytest.raises(InputError, match="weather"):
        paper_numbers("weather")


# ---------------------------------------------------------------------- tables


def test_missing_cells_are_missing_and_seeds_are_counted():
    records = [record(test=97.0 + seed - 42, validation=90.0, seed=seed) for seed in (42, 43, 44)]
    records.append(record(test=1.0, validation=90.0, seed=7))  # not a seed of the paper
    table = paper_table("community", summarise(records), select)
    ours = cell(table, "SheafDEQ", "L10")
    assert ours.text() == "98.0 [97.0, 99.0] 3/5 inside (shift 1.3)"
    assert cell(table, "SheafDEQ", "L7").text() == "missing"
    assert cell(table, "MLP", "L10").text() == "missing"
    assert cell(table, "SheafDEQ", "L10", "paper").text() == "98.6 [96.9, 99.1] (3rd)"
    assert cell(table, "constant predictor", "L10").text() == "33.0"


def test_full_table_has_a_row_for_each_configuration_and_for_what_the_paper_has_not():
    records = [record(test=90.0, validation=1.0, shift=shift) for shift in (1.2, 1.3)]
    records.append(record(test=60.0, validation=1.0, model="gcn", shift=None))
    table = paper_table("community", summarise(records), select, full=True)
    assert cell(table, "SheafDEQ, shift 1.2", "L10").text() == "90.0 1/5 below 6.9 (1st)"
    assert cell(table, "SheafDEQ, shift 1.3", "L10").rank == 1
    assert cell(table, "SheafDEQ, shift 1.4", "L10").text() == "missing"
    assert cell(table, "Gcn", "L10").rank == 3


def test_other_protocols_have_rows_of_their_own_and_continued_runs_are_left_out():
    recipe = {
        key: value
        for key, value in recipe_values("per-graph").items()
        if key not in ("task", "model")
    }
    records = [
        record(test=98.7, validation=1.0),
        record(test=90.0, validation=99.0, unconverged=True, max_epochs=5),
        record(test=99.0, validation=99.0, level=7, penalties={"residual_weight": 1.0}),
        record(test=90.5, validation=99.0, schedule="constant"),
        record(test=96.0, validation=99.0, **recipe),
        record(test=100.0, validation=99.0, init_from="another"),
    ]
    for full, name in ((False, "SheafDEQ"), (True, "SheafDEQ, shift 1.3")):
        table = paper_table("community", summarise(records), select, full=full)
        # rows beside the paper's have the record's own title
        title = "SheafDEQ" if not full else "Sheafdeq, shift 1.3"
        assert cell(table, name, "L10").spread[0] == 98.7
        assert cell(table, name, "L10").verdict == "inside"
        assert cell(table, name, "L7").spread is None  # a penalised run is another protocol
        assert cell(table, f"{title} [max_epochs=5]", "L10").marks == ("†",)
        assert cell(table, f"{title} [penalties=residual_weight=1]", "L7").spread[0] == 99.0
        assert cell(table, f"{title} [constant rate]", "L10").text().startswith("90.5 1/5 below ")
        assert cell(table, f"{title} [recipe per-graph]", "L10").spread[0] == 96.0
        text = render(table)
        assert "† the solver did not reach its tolerance" in text
        assert "4 runs of another protocol" in text
        assert "1 runs that continue another run" in text
        assert "100.0" not in text


def test_the_verdict_is_taken_at_the_printed_precision():
    def verdict(value):
        found = judged(Cell((value, value, value)), Cell((98.7, 97.9, 98.9)))
        return found.verdict, round(found.gap, 6)

    assert verdict(98.94) == ("inside", 0)  # prints as 98.9
    assert verdict(98.96) == ("above", 0.1)
    assert verdict(97.86) == ("inside", 0)
    assert verdict(90.0) == ("below", 7.9)
    assert judged(Cell(), Cell((1.0, 1.0, 1.0))).verdict == ""
    assert judged(Cell((1.0, 1.0, 1.0)), Cell(absent="—†")).verdict == ""
    assert Cell((99.4, 99.4, 99.4), verdict="above", gap=0.5).text() == "99.4 above 0.5"


def test_recipes_that_differ_by_their_task_share_a_row():
    def by(name, **fields):
        training = {
            key: value for key, value in recipe_values(name).items() if key not in ("task", "model")
        }
        return record(validation=1.0, model="sheaf-cascade", shift=None, **fields, **training)

    records = [by("cascade-coordinates", test=-0.1, task="coordinates", level=None)]
    terrain = {"task": "mnist-terrain", "level": None}
    records.append(by("cascade-terrain", test=90.0, margin=4, **terrain))
    records.append(by("cascade-terrain", test=95.0, **terrain))  # another reading of the task
    table = paper_table("distributed", summarise(records), select)
    (row,) = [row for row in table.rows if "Cascade" in row.title]
    assert row.title == "Sheaf-Cascade Δ [recipe cascade]"
    assert [cell.spread is not None for cell in row.cells] == [False, False, True, True]
    assert row.cells[2].spread == (90.0, 90.0, 90.0)
    assert "MNIST Terrain: with margin 4, our reading of the task." in table.notes


def test_rows_say_which_see_differences():
    plain = record(test=60.0, validation=1.0)
    given = record(test=99.0, validation=1.0, edge_inputs="difference")
    cascade = record(test=98.0, validation=1.0, model="sheaf-cascade", shift=None)
    without = record(
        test=80.0, validation=1.0, model="sheaf-cascade", shift=None, differences=False
    )
    ignores = record(test=50.0, validation=1.0, model="ignn", shift=None, edge_inputs="difference")
    assert [sees_differences(r) for r in (plain, given, cascade, without, ignores)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    table = paper_table("community", summarise([plain, given, cascade, without, ignores]), select)
    assert cell(table, "SheafDEQ", "L10").spread[0] == 60.0
    assert cell(table, "SheafDEQ Δ", "L10").spread[0] == 99.0
    assert cell(table, "SheafDEQ Δ", "L10").verdict == "inside"
    assert cell(table, "Sheaf-Cascade Δ", "L10").spread[0] == 98.0
    assert cell(table, "Sheaf-Cascade", "L10").spread[0] == 80.0
    assert cell(table, "IGNN", "L10").spread[0] == 50.0
    assert any(note.startswith("Δ:") for note in table.notes)


def test_the_models_that_see_edge_inputs_are_those_that_take_them():
    from dataclasses import replace

    from sheafdeq.registry import COMMUNITY, MODELS, build_model

    for name in MODELS:
        model = build_model(name, replace(COMMUNITY, edge_dim=5))
        assert (name in READ_EDGE_FEATURES) == (model.edge_dim == 5), name


def test_fresh_graphs_have_a_column_of_their_own():
    records = [record(test=98.0 + seed - 42, validation=1.0, seed=seed) for seed in (42, 43)]
    fresh = {records[0].id: 95.0}
    table = paper_table("community", summarise(records), select, fresh=fresh)
    assert table.columns == ("L1", "L3", "L5", "L7", "L9", "L10", "L10 fresh")
    assert cell(table, "SheafDEQ", "L10 fresh").text() == "95.0 1/2"
    assert cell(table, "SheafDEQ", "L10 fresh", "paper").text() == ""
    assert cell(table, "MLP", "L10 fresh").text() == ""
    assert all(len(row.cells) == 7 for row in table.rows)
    assert (
        paper_table("community", summarise(records), select, fresh={"other": 1.0}).columns[-1]
        == "L10"
    )


def test_what_cannot_be_believed_is_named_and_counted(tmp_path, capsys):
    good = record(test=90.0, validation=1.0)
    write_sealed(tmp_path / "good.run.json", good.payload())
    damaged = tmp_path / "damaged.run.json"
    write_sealed(damaged, record(test=99.0, validation=1.0, seed=43).payload())
    damaged.write_bytes(damaged.read_bytes().replace(b"99.0", b"99.9"))
    run = tmp_path / "run"
    run.mkdir()
    payload = record(test=98.0, validation=1.0, seed=44).payload()
    write_sealed(
        run / "record.json", {**payload, "checkpoint": {"checkpoint.safetensors": "0" * 64}}
    )
    (run / "checkpoint.safetensors").write_bytes(b"another")
    (tmp_path / "bad.eval.json").write_text("{}")
    found = collect([tmp_path])
    assert [r.id for r in found.runs] == [good.id]
    assert [text.split(":")[0] for text in found.excluded] == [
        "damaged.run.json", "run/checkpoint.safetensors", "bad.eval.json",
    ]  # fmt: skip
    assert main(["tables", "community", "--results", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "3 files excluded: damaged.run.json" in captured.out
    assert captured.err.count("excluded") == 3
    assert "90.0 1/5" in captured.out
    assert str(tmp_path) not in captured.out


def test_another_metric_replaces_the_score_and_hides_the_paper():
    table = paper_table(
        "community", summarise([record(test=90.0, validation=1.0)]), select, metric="accuracy"
    )
    assert cell(table, "SheafDEQ", "L10").spread == (0.9, 0.9, 0.9)
    assert not any(row.source == "paper" for row in table.rows)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.rows = [], 0

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_format_holds_the_numbers():
    table = paper_table(
        "distributed",
        summarise([record(test=-0.4, validation=1.0, task="counting", level=None)]),
        select,
    )
    for form in FORMATS:
        text = render(table, form)
        assert "-0.4" in text
        assert "-0.317" in text  # the paper's
        assert "missing" in text
    rows = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    ours = next(
        row
        for row in rows
        if (row["model"], row["source"]) == ("SheafDEQ", "ours")
        and row["column"].startswith("Count")
    )
    assert (ours["median"], ours["finished"], ours["planned"], ours["configuration"]) == (
        "-0.4",
        "1",
        "5",
        "shift 1.3",
    )
    reader = _Reader()
    reader.feed(render(table, "html"))
    assert reader.open == []
    assert reader.rows == len(table.rows) + 1
    markdown = [line for line in render(table, "markdown").splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in markdown}) == 1
    latex = render(table, "latex")
    assert latex.count("{") - latex.count(r"\{") == latex.count("}") - latex.count(r"\}")
    with pytest.raises(InputError, match="format"):
        render(table, "docx")


def test_overview_shows_whatever_there_is():
    table = overview_table(
        summarise([record(test=90.0, validation=1.0), record(test=80.0, validation=1.0, seed=43)]),
        select,
    )
    assert table.columns == ("community L10: accuracy (%)",)
    assert cell(table, "Sheafdeq", table.columns[0]).text() == "85.0 [80.0, 90.0] 2/2 (shift 1.3)"


# ---------------------------------------------------------------------- staleness and the command
# line


def staleness_payload(status="converged", study="schedules", median=2e-5, **other):
    return {
        "schema": "sheafdeq.async/1",
        "command": "sheafdeq async RUN",
        "study": study,
        "run": "ab" * 32,
        "seed": 42,
        "graph": "test[0]",
        "nodes": 30,
        "edges": 90,
        "dtype": "float32",
        "work": 500,
        "model": {"name": "sheafdeq", "title": "SheafDEQ", "options": {}},
        "task": {
            "name": "community",
            "title": "community, level 7",
            "level": 7,
            "score": "accuracy (%)",
        },
        "simulation": "exact",
        "reference": {
            "kind": "converged",
            "steps": 90,
            "status": status,
            "residual": 1e-7,
            "score": 99.0,
        },
        "conditions": [
            {
                "update_window": 5,
                "max_delay": 2,
                "label": "(5, 2)",
                "score": None,
                "statuses": {"converged": 19, "diverged": 1},
                "violations": 0,
                "staleness": {"mean": 1.0, "max": 6, "histogram": [3, 4, 5]},
                "trajectories": [],
                "samples": 20,
                "counted": 19,
                "d_out": {"median": median, "min": 1e-5, "max": 3e-5},
            },
        ],
        **other,
    }


def test_staleness_has_a_row_for_every_run_and_takes_no_other_study_for_it():
    studies = [
        staleness_payload(study="faults", median=9.0),
        staleness_payload(),
        staleness_payload("stagnated", median=2.5e-5, run="cd" * 32),
        staleness_payload(model={"name": "mine", "title": "Mine", "options": {}}, median=2.9e-5),
        staleness_payload(task={"name": "community", "level": 10}, median=9.0),
    ]
    table = staleness_table(studies)
    assert cell(table, "SheafDEQ (5, 2)", "d_out", "ours abababab").text() == (
        "2.00e-05 [1.00e-05, 3.00e-05] 19/20"
    )
    assert cell(table, "SheafDEQ (5, 2)", "d_out", "ours cdcdcdcd").marks == ("†",)
    assert cell(table, "SheafDEQ (5, 2)", "d_out", "paper").text() == (
        "7.08e-04 [7.08e-04, 7.09e-04]"
    )
    assert cell(table, "Mine (5, 2)", "d_out", "ours abababab").text().startswith("2.90e-05")
    assert cell(table, "Loop Transformer (20 loops) (5, 2)", "d_out").text() == "missing"
    assert not any("9.00" in entry.text() for row in table.rows for entry in row.cells)
    assert any(note.startswith("†") for note in table.notes)
    assert not any(note.startswith("†") for note in staleness_table([staleness_payload()]).notes)
    assert len(staleness_table([], full=True).rows) == 14


def test_some_columns_only():
    part = only_columns(staleness_table([staleness_payload()]), ["d_out"])
    # what we have not measured is left out, with the paper's
    assert [row.title for row in part.rows] == ["SheafDEQ (5, 2)", ""]
    with pytest.raises(InputError, match="no column 'L8'"):
        only_columns(part, ["L8"])


def test_the_command_prints_every_table(tmp_path, capsys):
    write_sealed(tmp_path / "async.json", staleness_payload())
    write_sealed(tmp_path / "one.run.json", record(test=90.0, validation=1.0).payload())
    for name in ("community", "distributed", "staleness", "all"):
        assert main(["tables", name, "--results", str(tmp_path)]) == 0
        assert capsys.readouterr().out
    assert main(["tables", "staleness", "--results", str(tmp_path), "--format", "csv"]) == 0
    assert "2e-05" in capsys.readouterr().out
    assert main(["tables", "community", "--results", str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    (tmp_path / "one.run.json").write_text("{}")
    assert main(["tables", "community", "--results", str(tmp_path)]) == 0
    assert "one.run.json" in capsys.readouterr().err


def test_parameter_counts_match_the_paper_at_three_features_but_for_sheafdeq(capsys):
    assert main(["tables", "parameters", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    ours = {row["model"]: float(row["median"]) for row in rows if row["column"] == "ours, f = 3"}
    paper = {row["model"]: float(row["median"]) for row in rows if row["column"] == "paper"}
    assert ours.pop("SheafDEQ") == 10_798
    assert paper.pop("SheafDEQ") == 11_045
    assert ours == paper


def test_records_are_json_one_line_each(tmp_path):
    write_sealed(tmp_path / "a.run.json", record(test=90.0, validation=1.0).payload())
    lines = (tmp_path / "a.run.json").read_text().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["payload"]["scores"]["test"] == 90.0


def test_records_older_than_an_option_stand_in_one_row_with_those_that_name_its_default():
    old, new = record(test=98.0, validation=99.0), record(test=97.0, validation=99.0, seed=43)
    named = {**new.model.options, "dropout": 0.0, "encoder": [], "skip": False}
    new = new.model_copy(update={"model": new.model.model_copy(update={"options": named})})
    (row,) = summarise([old, new])
    assert [found.seed for found in row.records] == [42, 43]
    used = {**named, "dropout": 0.5}
    other = new.model_copy(update={"model": new.model.model_copy(update={"options": used})})
    assert len(summarise([old, other])) == 2


def test_a_long_list_of_settings_is_named_by_a_run_that_has_them():
    settings = {"max_epochs": 7, "patience": 7, "graphs_per_update": 1, "keep": "last"}
    noisy = {"feature_noise": 0.3, "feature_shift": 0.2}
    run = record(test=90.0, validation=99.0, augmentation=noisy, **settings)
    table = paper_table("community", summarise([run]), select)
    (note,) = [note for note in table.notes if "another protocol" in note]
    assert note.endswith("(other settings: 1).")
    assert any(f"[settings of {run.id[:8]}]" in row.title for row in table.rows)
