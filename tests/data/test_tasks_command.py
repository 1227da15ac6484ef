"""``sheafdeq tasks`` and ``sheafdeq tasks show``."""

import json

import numpy as np
import pytest

from sheafdeq.cli import main
from sheafdeq.data import task_names


def run(capsys, *arguments):
    code = main(["tasks", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    for name in task_names():
        assert name in out
    code, out, _ = run(capsys, "--json")
    rows = json.loads(out)["tasks"]
    assert [row["name"] for row in rows] == task_names()
    assert all(row["licence"] and row["nodes"] > 0 and row["stored_edges"] > 0 for row in rows)


def test_show(capsys):
    code, out, _ = run(
        capsys, "show", "community", "--level", "4", "--option", "nodes=60", "--option", "k=3"
    )
    assert code == 0
    assert "homophily" in out
    code, out, _ = run(capsys, "show", "counting", "--json")
    found = json.loads(out)
    assert found["splits"]["train"]["scored"] == 765
    assert found["as_recorded"] is True
    assert found["constant_over_all"]["relative_rmse"] == pytest.approx(0.3534, abs=1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        ("community", "--level", "5", "--option", "nodes=90", "--option", "k=3"),
        ("counting", "--option", "chains=9"),
        ("coordinates", "--option", "graphs=20"),
        ("mnist-terrain-standin", "--option", "images=12"),
    ],
)
def test_plot_is_a_picture(capsys, tmp_path, arguments):
    from matplotlib.image import imread

    path = tmp_path / "task.png"
    code, out, _ = run(capsys, "show", *arguments, "--plot", str(path))
    assert code == 0
    assert str(path) in out
    picture = imread(path)
    assert picture.shape[0] > 500
    assert picture.shape[1] > 1000
    # something is drawn
    assert len(set(map(tuple, picture[::9, ::9].reshape(-1, picture.shape[2]).tolist()))) > 20


def test_own_graph(capsys, tmp_path):
    (tmp_path / "n.csv").write_text(
        "node,a,label\n" + "".join(f"{i},{i / 10},{i % 2}\n" for i in range(70))
    )
    (tmp_path / "e.csv").write_text(
        "source,target\n" + "".join(f"{i},{(i + 1) % 70}\n" for i in range(70))
    )
    tables = ("--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"))
    picture = tmp_path / "own.svg"
    code, out, _ = run(
        capsys, "show", *tables, "--seed", "1", "--undirected", "--json", "--plot", str(picture)
    )
    assert code == 0
    assert json.loads(out)["splits"]["train"]["stored_edges"] == 140
    assert picture.stat().st_size > 1000
    code, _, err = run(capsys, "show", *tables)
    assert code == 2
    assert "give a seed" in err
    (tmp_path / "e.csv").write_text("source,target\n0,99\n")
    code, _, err = run(capsys, "show", *tables, "--seed", "1")
    assert code == 1
    assert "line 2: target '99' is not a node" in err
    x = np.random.default_rng(0).random((70, 3))
    edges = np.stack([np.arange(69), np.arange(1, 70)])
    np.savez(tmp_path / "own.npz", x=x, edge_index=edges, y=np.linspace(0, 1, 70))
    code, out, _ = run(
        capsys,
        "show",
        "--npz",
        str(tmp_path / "own.npz"),
        "--seed",
        "3",
        "--plot",
        str(tmp_path / "o.png"),
    )
    assert code == 0
    assert "node regression" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "name one task"),
        (("community", "--npz", __file__), 2, "is a task of the package"),
        (("--nodes", "n.csv"), 2, "belong together"),
        (("counting", "--option", "chains"), 2, "KEY=VALUE"),
        (("counting", "--seed", "3"), 2, "--task-set seed"),
        (("--npz", "absent.npz"), 2, "absent.npz"),
        (("--npz", __file__, "--level", "3"), 2, "for named tasks"),
        (("nothing",), 2, "there is no task 'nothing'"),
        (("community", "--level", "12"), 2, "must be a whole number from 0 to 10, got '12'"),
        (
            ("counting", "--option", "chain=3"),
            2,
            "(did you mean 'chains'?). Choose from: chains, shortest, features, seed",
        ),
        (("counting", "--option", "chains=9", "--plot", "picture.nonsense"), 2, "must end in"),
    ],
)
def test_mistakes_are_named_without_a_traceback(capsys, arguments, code, message):
    found, _, err = run(capsys, "show", *arguments)
    assert found == code
    assert message in err
    assert "Traceback" not in err


def test_missing_data_says_what_to_do(capsys, tmp_path):
    code, _, err = run(capsys, "show", "texas", "--root", str(tmp_path))
    assert code == 1
    assert "12 data file(s) are not in the data folder" in err
    assert "--download" in err
