"""The command as a user calls it."""

import json

import pytest

from sheafdeq.cli import main


def test_a_named_model_on_a_task(capsys, tmp_path):
    code = main(
        [
            "certify",
            "ignn",
            "--task",
            "counting",
            "--effort",
            "quick",
            "--json",
            "--out",
            str(tmp_path),
        ]
    )
    payload = json.loads(capsys.readouterr().out)
    assert code == 0
    assert payload["certificate"]["verdict"] == "certified"
    assert payload["certificate"]["rate"] < 1
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_the_plain_report(capsys):
    assert main(["certify", "appnp", "--task", "counting"]) == 0
    text = capsys.readouterr().out
    assert "verdict: certified (global)" in text
    assert "Proposition 33" in text


def test_the_audit_command(capsys):
    assert main(["certify", "--audit", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []


def test_the_audit_of_solves_writes_its_counts(capsys, tmp_path):
    code = main(
        ["certify", "--audit-solves", "2", "--first", "9", "--json", "--out", str(tmp_path)]
    )
    payload = json.loads(capsys.readouterr().out)
    assert payload["draws"] == 2
    assert payload["graphs"] == sum(
        count for name, count in payload["statuses"].items() if name.startswith("forward")
    )
    assert code == (1 if payload["violations"] else 0)
    assert (tmp_path / "solve-audit-0-9.json").is_file()
    assert main(["certify", "--audit-solves", "0"]) == 2


def test_wrong_use_is_told(capsys, tmp_path):
    assert main(["certify"]) == 2
    assert main(["certify", "ignn"]) == 2
    assert main(["certify", "no-such-model", "--task", "counting"]) == 2
    assert main(["certify", "--all", str(tmp_path / "missing")]) == 2
    assert main(["certify", "--all", str(tmp_path)]) == 0
    assert "0 checkpoints" in capsys.readouterr().out


TASK = {
    "name": "community",
    "level": 7,
    "options": {"nodes": 30, "k": 3, "train_seeds": [42], "test_seeds": [100]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from sheafdeq.training import TrainingConfig, train

    root = tmp_path_factory.mktemp("runs")
    for model in ("ignn", "sheaf-cascade", "mlp"):
        train(
            TrainingConfig.model_validate(
                {"task": TASK, "model": {"name": model}, "seed": 42, "max_epochs": 1}
            ),
            out=root,
        )
    return root


def test_a_table_over_all_runs_is_resumable(store, capsys, tmp_path):
    command = ["certify", "--all", str(store), "--out", str(tmp_path), "--threads", "1"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "2 checkpoints: 2 certified" in said.out
    assert "1 runs have no recurrence" in said.out
    assert "reused" not in said.err
    records = sorted(tmp_path.glob("*.json"))
    assert len(records) == 2
    table = (tmp_path / "certificates.md").read_text()
    assert table.count("\n|") == 4  # head, rule, two rows
    assert "Thompson's metric of that level" in table
    assert "\\|J\\|" in table
    for row in table.splitlines()[-2:]:
        # spectral radius and residual are filled in
        assert " - |" not in row.split("| certified")[1].split("|", 4)[-1]

    before = {path: path.stat().st_mtime_ns for path in records}
    # altered: made again
    records[0].write_bytes(records[0].read_bytes().replace(b"certified", b"cartified", 1))
    assert main([*command, "--format", "markdown"]) == 0
    said = capsys.readouterr()
    assert said.err.count("reused") == 1
    assert said.out.startswith("| model |")
    assert before[records[1]] == records[1].stat().st_mtime_ns
    assert (tmp_path / "certificates.md").read_text().count("\n|") == 4

    assert main([*command, "--effort", "quick"]) == 0  # less effort: what there is will do
    assert capsys.readouterr().err.count("reused") == 2
    assert main([*command, "--seed", "5"]) == 0  # other options: nothing is reused
    assert "reused" not in capsys.readouterr().err
    assert main([*command, "--seed", "5", "--fresh", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2


def test_the_table_of_stored_records_says_the_scheme(store, capsys, tmp_path):
    from sheafdeq.records import read_sealed, write_sealed

    assert main(["certify", "--all", str(store), "--out", str(tmp_path), "--effort", "quick"]) == 0
    path = sorted(tmp_path.glob("*.json"))[0]
    write_sealed(tmp_path / "old.json", read_sealed(path) | {"schema": "sheafdeq.certificate/1"})
    capsys.readouterr()
    assert (
        main(["certify", "--table", str(tmp_path), "--format", "markdown", "--out", str(tmp_path)])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5  # head, rule, three records
    assert sorted(line.split(" | ")[4] for line in lines[2:]) == ["1", "2", "2"]
    assert (tmp_path / "certificates.md").read_text().count("\n|") == 5
    (tmp_path / "damaged.json").write_text("{")
    assert main(["certify", "--table", str(tmp_path)]) == 1
    assert "damaged" in capsys.readouterr().err


def test_a_witness_is_on_disk_before_the_verdict_that_needs_it(tmp_path, monkeypatch):
    """Killed between the two writes, or with its states lost or altered: no record is reused that
    speaks of a missing witness."""
    import torch

    import sheafdeq.cli.subject
    from sheafdeq.certificates import Certificate, Level, Verdict, Witness
    from sheafdeq.cli.certificate_records import SCHEMA, finished_certificates, witness_path
    from sheafdeq.cli.certify import _write

    state = torch.ones(2, 2, dtype=torch.float64)
    witness = Witness(state, 2 * state, (1e-15, 1e-15), 0.69, True, "Krawczyk test")
    certificate = Certificate(Verdict.REFUTED, Level.NONE, "m", "g", witness=witness)

    class options:
        split, graph, effort, seed = "test", "0", "quick", 0

    def payload():
        facts = {
            "schema": SCHEMA,
            "part": "test[0]",
            "starts_seed": 0,
            "run": "r",
            "effort": "quick",
        }
        return {**facts, "certificate": certificate.to_json()}

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sheafdeq.cli.subject, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            _write(str(tmp_path), "one", payload(), certificate)
    assert not list(tmp_path.glob("*.json"))  # no verdict without the states
    _write(str(tmp_path), "one", payload(), certificate)
    states = witness_path(tmp_path / "one.json")
    assert finished_certificates(tmp_path, options)["r"]["certificate"]["verdict"] == "refuted"
    saved = states.read_bytes()
    states.write_bytes(saved[:-1] + b"x")
    assert finished_certificates(tmp_path, options) == {}
    states.unlink()
    assert finished_certificates(tmp_path, options) == {}


def test_records_of_the_first_scheme_are_read_and_told_apart():
    from sheafdeq.cli.certificate_records import EARLIER, SCHEMA, verdict_text

    facts = {"verdict": "refuted", "level": "none", "radius": None, "witness": {"proved": False}}
    assert verdict_text({"schema": EARLIER, "certificate": facts}) == (
        "two candidates (scheme 1 said refuted)"
    )
    assert (
        verdict_text({"schema": EARLIER, "certificate": facts | {"witness": {"proved": True}}})
        == "refuted"
    )
    assert (
        verdict_text({"schema": SCHEMA, "certificate": facts | {"verdict": "two candidates"}})
        == "two candidates"
    )


def test_a_run_that_fails_does_not_cost_the_others(store, capsys, monkeypatch):
    import sheafdeq.certificates

    true = sheafdeq.certificates.certify

    def broken(model, graph, **options):
        if type(model).__name__ == "IGNN":
            raise RuntimeError("out of memory")
        return true(model, graph, **options)

    monkeypatch.setattr(sheafdeq.certificates, "certify", broken)
    assert main(["certify", "--all", str(store), "--effort", "quick"]) == 1
    out = capsys.readouterr().out
    assert "1 checkpoints" in out
    assert "out of memory" in out


def test_certificates_are_named_by_the_rule_and_the_model_behind_them(monkeypatch, tmp_path):
    import importlib
    import sys

    from sheafdeq.cli.certificate_records import certificate_code
    from sheafdeq.identity.definitions import Definitions
    from sheafdeq.identity.sources import Definition, Sources
    from sheafdeq.models import APPNP, IGNN

    models = [IGNN(2, 2, 4), APPNP(2, 2, 4)]
    assert len({certificate_code(model) for model in models}) == 2
    assert certificate_code(models[0]) == certificate_code(IGNN(2, 2, 4))
    # The rule of one model does not reach the rules of the others.
    sources = Sources()
    reached = Definitions(sources).reached(
        sources.meanings(sources.module("sheafdeq.certificates"), "certify")
    )
    modules = {key.module for key in reached if isinstance(key, Definition)}
    assert "sheafdeq.certificates.certificate" in modules
    assert not any(
        name.startswith("sheafdeq.models.")
        for name in modules
        if "ignn" in name or "cascade" in name
    )
    # Editing a user's model makes another certificate.
    path = tmp_path / "own_model.py"
    path.write_text("from sheafdeq.models import IGNN\n\nclass Own(IGNN):\n    factor = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        own = importlib.import_module("own_model").Own(2, 2, 4)
        before = certificate_code(own)
        path.write_text("from sheafdeq.models import IGNN\n\nclass Own(IGNN):\n    factor = 12\n")
        assert certificate_code(own) not in (before, certificate_code(models[0]))
    finally:
        sys.modules.pop("own_model", None)
