"""A wrong word on the command line is one line and exit code 2; whatever else fails is one line and
exit code 1."""

import errno
import os
import subprocess
import sys

import pytest

import sheafdeq.cli
from sheafdeq.cli import describe, main
from sheafdeq.cli.arguments import Parser
from sheafdeq.printable import printable


def run(capsys, *arguments):
    """Exit code and what was said on standard error."""
    return main(list(arguments)), capsys.readouterr().err


TRAIN = ("train", "--task", "community", "--model", "sheafdeq", "--epochs", "1")

WRONG = [
    ((*TRAIN, "--set", "shift=abc"), "shift must be a number, got 'abc'"),
    ((*TRAIN, "--set", "shift=0.5"), "shift must be"),
    ((*TRAIN, "--set", "gradient=5"), "gradient must be text, got 5"),
    ((*TRAIN, "--set", "gradient=implicitly"), "unknown gradient 'implicitly'"),
    ((*TRAIN, "--set", "shfit=1.2"), "no option 'shfit' (did you mean 'shift'?)"),
    ((*TRAIN, "--set", "shift"), "KEY=VALUE"),
    (
        ("train", "--task", "community", "--model", "sheaf-cascade", "--set", "training_steps=3"),
        "training_steps must be a list",
    ),
    (
        ("train", "--task", "community", "--model", "sheaf-cascade", "--set", "hidden=1e9"),
        "hidden must be a whole number from 1",
    ),
    (
        ("train", "--task", "community", "--model", "dnsd", "--set", "layers=1000000"),
        "layers must be a whole number from 1 to 1,000",
    ),
    (
        (*TRAIN, "--task-set", "nodes=abc"),
        "nodes must be a whole number from 1 to 1,000,000, got 'abc'",
    ),
    ((*TRAIN, "--task-set", "nodes=900000", "--task-set", "k=900"), "choose smaller sizes"),
    ((*TRAIN, "--task-set", "split=public"), "no option 'split'"),
    ((*TRAIN, "--task-set", "download=true"), "is not for a configuration to decide"),
    ((*TRAIN, "--task-set", "mask_seed=36893488147419103232"), "mask_seed must be"),
    (
        ("train", "--task", "cora", "--model", "gcn", "--task-set", "undirected=maybe"),
        "undirected must be true or false, got 'maybe'",
    ),
    (("train", "--task", "comunity", "--model", "sheafdeq"), "did you mean 'community'"),
    (("train", "--task", "community", "--model", "shefdeq"), "did you mean 'sheafdeq'"),
    (
        ("train", "--task", "community", "--level", "11", "--model", "sheafdeq"),
        "whole number from 0 to 10",
    ),
    ((*TRAIN, "--epochs", "-1"), "--epochs: must be a whole number"),
    ((*TRAIN, "--epohs", "3"), "did you mean '--epochs'"),
    ((*TRAIN, "--learning-rate", "inf"), "finite number above 0"),
    ((*TRAIN, "--learning-rate", "nan"), "finite number above 0"),
    ((*TRAIN, "--seed", str(2**70)), "--seed: must be a whole number"),
    ((*TRAIN, "--dtype", "float23"), "did you mean 'float32'"),
    ((*TRAIN, "--threads", "100000"), "--threads: must be a whole number from 1 to 1,024"),
    ((*TRAIN, "--config", "absent.toml"), "absent.toml: no such file"),
    (("trian",), "did you mean 'train'"),
    (("tasks", "show", "comunity"), "did you mean 'community'"),
    (("tasks", "show", "cora", "--split", "pubic"), "cora"),
    (("models", "shefdeq"), "did you mean 'sheafdeq'"),
    (("sweep", "run", "smok"), "smok"),
    (("figures", "--only", "foo"), "there is no 'foo'"),
    (("figures", "--only", "fronteir"), "did you mean 'frontier'"),
    (("figures", "--runs", "nope"), "'nope' is not a folder"),
    (("figures", "--results", "nope"), "'nope' is not a folder"),
    (("tables", "comunity"), "did you mean 'community'"),
    (("tables", "all", "--results", "nope"), "'nope' is not a folder"),
    (("diagnose", "nope"), "nope"),
    (("async", "nope", "--loss", "2"), "at most 1"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), WRONG, ids=[" ".join(words)[:80] for words, _ in WRONG]
)
def test_a_wrong_option_is_one_line_and_exit_code_two(
    capsys, monkeypatch, tmp_path, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHEAFDEQ_DATA", str(tmp_path))
    code, said = run(capsys, *arguments)
    assert code == 2, said
    assert message in said
    assert said.count("\n") == 1
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "option",
    [
        ("train", "--task", "community", "--model", "sheafdeq", "--out"),
        ("studies", ".", "--results"),
    ],
)
def test_an_output_folder_that_is_a_file(capsys, tmp_path, option):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "n" * 300, "a\0b"):
        code, said = run(capsys, *option, str(place))
        assert code == 2, said
        assert said.count("\n") == 1


def test_tensorboard_without_the_package(capsys, monkeypatch, tmp_path):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **others):
        if name.startswith("torch.utils.tensorboard") or name.startswith("tensorboard"):
            raise ImportError("No module named 'tensorboard'")
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    code, said = run(capsys, *TRAIN, "--tensorboard", str(tmp_path / "curves"))
    assert code == 2
    assert "sheafdeq[tensorboard]" in said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a"),
            "runs/a: No space left on device",
        ),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a"), "Read-only file system"),
        (
            NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), "a/b"),
            "a/b: Not a directory",
        ),
        (
            OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "n" * 9),
            "File name too long",
        ),
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "not enough memory",
        ),
        (RecursionError("maximum recursion depth exceeded"), "nests too deeply"),
        (ImportError("No module named 'ray'"), "No module named 'ray'"),
        (KeyError("seed"), "unexpected KeyError: 'seed'"),
        (
            UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
            "unexpected UnicodeEncodeError",
        ),
    ],
)
def test_everything_else_is_named_in_one_line(capsys, monkeypatch, error, words):
    def fail(options):
        raise error

    parser = Parser(prog="sheafdeq")
    parser.set_defaults(run=fail)
    monkeypatch.setattr(sheafdeq.cli, "build_parser", lambda: parser)
    monkeypatch.delenv("SHEAFDEQ_DEBUG", raising=False)
    code, said = run(capsys)
    assert code == 1
    assert words in said
    assert said.count("\n") == 1
    assert describe(error) in said
    monkeypatch.setenv("SHEAFDEQ_DEBUG", "1")
    with pytest.raises(type(error)):
        main([])


def test_messages_cannot_steer_the_terminal(capsys):
    code, said = run(capsys, "tasks", "show", "\x1b]0;owned\x07\x1b[2J")
    assert code == 2
    assert "\x1b" not in said
    assert printable("a\x1b[31m\u202eb") == "a\\x1b[31m\\u202eb"


def test_every_option_of_every_model_and_task_has_a_type_that_takes_its_default():
    from sheafdeq.data.catalogue import entries
    from sheafdeq.registry import MODELS

    for owner in [*MODELS.values(), *entries()]:
        defaults = {**getattr(getattr(owner, "build", None), "settings", {}), **owner.options}
        assert set(owner.types) == set(defaults)
        for name, kind in owner.types.items():
            assert kind.accepts(defaults[name]), (owner.name, name)
            assert kind.words
    for spec in MODELS.values():
        for options in spec.grid:
            assert all(spec.types[name].accepts(value) for name, value in options.items())


def test_shell_completion(tmp_path):
    pytest.importorskip("argcomplete", reason="argcomplete is an optional package")

    def complete(line):
        found = tmp_path / "found"
        words = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        environment = {**os.environ, **words, "_ARGCOMPLETE_STDOUT_FILENAME": str(found)}
        subprocess.run(
            [sys.executable, "-m", "sheafdeq"], env=environment, capture_output=True, timeout=60
        )
        return found.read_text().split()

    assert complete("sheafdeq tra") == ["train"]
    assert complete("sheafdeq train --lea") == ["--learning-rate"]
    assert complete("sheafdeq train --task comm") == ["community"]
    assert complete("sheafdeq models sheafdeq-") == ["sheafdeq-no-norm"]


def test_assignments_mean_the_same_in_train_and_sweep(tmp_path):
    """--set is a model option, --task-set a task option, --training-set a training field."""
    from sheafdeq.cli import build_parser
    from sheafdeq.cli.sweep import _sweep
    from sheafdeq.cli.train import _values
    from sheafdeq.training.config import TrainingConfig

    sweep = tmp_path / "one.toml"
    sweep.write_text(
        'name = "one"\nseeds = [42]\n[[tasks]]\nname = "community"\nlevels = [7]\n'
        '[[models]]\nname = "sheafdeq"\n'
    )
    words = ["--set", "shift=1.2", "--task-set", "nodes=30", "--task-set", "k=3"]
    words += ["--training-set", "graphs_per_update=1", "--training-set", "max_epochs=3"]
    parse = build_parser().parse_args
    train = ["train", "--task", "community", "--level", "7", "--model", "sheafdeq", "--seed", "42"]
    one = TrainingConfig.parse(_values(parse([*train, *words])), "train")
    store = str(tmp_path / "runs")
    many = _sweep(parse(["sweep", "status", str(sweep), "--out", store, *words]))[0].configs()
    assert many == [one]
    assert (one.model.options, one.task.options) == ({"shift": 1.2}, {"nodes": 30, "k": 3})
    assert (one.graphs_per_update, one.max_epochs) == (1, 3)


def test_sizes_and_solver_are_options_of_every_model_that_has_them():
    from sheafdeq.registry import COMMUNITY, MODELS, build_model

    given = {"stalk_dim": 2, "channels": 5, "heads": 2, "width": 10, "layers": 3, "steps": 7}
    for name, spec in MODELS.items():
        sizes = {key: value for key, value in given.items() if key in spec.types}
        model = build_model(name, COMMUNITY, **sizes)
        plain = build_model(name, COMMUNITY)
        assert sizes or name == "energygnn", name
        if set(sizes) - {"steps"}:
            assert model.num_parameters() != plain.num_parameters(), name
        if "steps" in spec.types:
            assert model.steps == 7
        if "solver" in spec.types:
            other = build_model(name, COMMUNITY, solver="anderson", tolerance=1e-3)
            assert type(other.solver).__name__ == "Anderson"
            assert (other.solver.tolerance, other.steps) == (1e-3, plain.steps)
            stopping = build_model(name, COMMUNITY, tolerance=1e-2).solver
            assert type(stopping) is type(plain.solver)
            assert stopping.tolerance == 1e-2
            assert stopping.stop_early
            assert stopping.distance is plain.solver.distance


def test_settings_that_were_not_given_leave_records_as_they_were():
    from sheafdeq.registry import MODELS

    for spec in MODELS.values():
        assert not set(spec.options) & set(spec.build.settings)
    assert {"channels", "steps", "solver", "tolerance"} <= set(MODELS["sheafdeq"].build.settings)
