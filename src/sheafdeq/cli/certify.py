"""``sheafdeq certify``: what is proved, refuted or open about a model on a graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sheafdeq.cli.arguments import Parser, present_folder, seed_number, whole_number
from sheafdeq.cli.audits import audit_certificates, audit_statuses
from sheafdeq.cli.certificate_records import (
    SCHEMA,
    TABLE,
    certificate_code,
    finished_certificates,
    print_stored,
    render,
    table_row,
    witness_path,
)
from sheafdeq.cli.data_options import PARTS, add_data_options, data_choice
from sheafdeq.cli.predictions import add_prediction_options, refused_or_wanted, run_predictions
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import InputError, SheafDEQError, UsageError
from sheafdeq.options import suggestion

HELP = "prove, refute or leave open: does a model have one equilibrium, and is it reached?"


def configure(parser: Parser) -> None:
    """Certificates with rate, metric, domain and margins; refutations with a witness
    (docs/certificates.md)."""
    add_runs(
        parser,
        "subject",
        metavar="RUN|MODEL",
        nargs="?",
        other="a model",
        help="a run (its directory, or the beginning of its id) or checkpoint, or the name of a "
        "model (then with fresh weights drawn with --seed)",
    )
    parser.value(
        "--all",
        present_folder,
        "one table over every trained checkpoint below FOLDER; with --out, resumable",
        metavar="FOLDER",
    )
    parser.flag("--fresh", "with --all: examine again what --out already holds")
    parser.choice("--format", ["text", "markdown"], "of the table of --all", "text")
    for flag, words in (
        ("--audit", "try to catch false certificates in this many random problems"),
        (
            "--audit-solves",
            "try to catch false statuses and gradients in solves with known answers",
        ),
    ):
        parser.value(flag, whole_number(), words, metavar="DRAWS")
    parser.value("--first", whole_number(0), "number of the first draw of an audit", 0)
    parser.value(
        "--table",
        present_folder,
        "the table from the certificates stored in FOLDER, whatever their scheme",
        metavar="FOLDER",
    )
    parser.add_argument("--task", help="task to take the graph from (default: the run's own)")
    parser.value("--level", whole_number(0, 10), "heterophily level of a community task")
    add_data_options(parser, parts=PARTS)
    parser.value("--graph", str, "number of one graph of the split, or 'all'", "0")
    parser.choice("--effort", ["quick", "normal", "thorough"], "", "normal")
    parser.value("--seed", seed_number, "of the starts, and of fresh weights", 0)
    parser.threads()
    parser.folder("--out", "write certificates (and witness states) into this folder")
    add_prediction_options(parser)
    parser.answers(run)


def run(options: Any) -> int:
    """One subject, all of a folder, or the audit."""
    import torch

    choices = (options.subject, options.all, options.audit, options.audit_solves, options.table)
    if sum(choice is not None for choice in choices) != 1:
        raise UsageError(
            "give one of: RUN|MODEL, --all FOLDER, --table FOLDER, --audit DRAWS, "
            "--audit-solves DRAWS"
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if refused_or_wanted(options):
        return run_predictions(options)
    if options.audit is not None:
        return audit_certificates(options)
    if options.audit_solves is not None:
        return audit_statuses(options)
    if options.table is not None:
        return print_stored(options)
    if options.all is not None:
        return _table(options)
    payload, certificate = _one(options.subject, options)
    if options.json:
        print(json.dumps(payload))
    else:
        print(f"{payload['subject']}: {payload['task']}, {payload['part']}")
        print(certificate.report())
        print(f"\n{certificate.seconds:.1f} s")
    return 0


def _one(name: str, options: Any) -> tuple[dict[str, Any], Any]:
    """Certify one subject; writes its files when asked to."""
    from sheafdeq.certificates import certify

    model, graph, facts = _load(name, options)
    certificate = certify(model, graph, effort=options.effort, seed=options.seed)
    payload = {
        "schema": SCHEMA,
        **facts,
        "effort": options.effort,
        "starts_seed": options.seed,
        "code": certificate_code(model),
        "certificate": certificate.to_json(),
    }
    if options.out:
        _write(options.out, facts["file"], payload, certificate)
    return payload, certificate


def _load(name: str, options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The model, its graph, and where both came from."""
    import torch

    from sheafdeq.cli.subject import load_examined, one_graph
    from sheafdeq.records import RECORD_FILE
    from sheafdeq.registry import MODELS, Shape, build_model, use_model
    from sheafdeq.training.checkpoint import load_model
    from sheafdeq.training.store import safe_name
    from sheafdeq.user_models import installed_names

    path, data = Path(name), data_choice(options)
    if (path / RECORD_FILE).is_file() and options.task is None and options.level is None:
        subject = load_examined(path, options.split, options.graph, data=data)
        facts = {
            "subject": f"{subject.record.model.title}, seed {subject.record.seed}, run "
            f"{subject.record.id[:8]}",
            "model": subject.name,
            "run": subject.record.id,
            "seed": subject.record.seed,
            "task": subject.task_facts()["title"],
            "part": " ".join([subject.graph_label, *data.words()]),
            "file": subject.file_name,
        }
        return subject.model, subject.graph, facts
    known = path.exists() or name in MODELS or ":" in name or name in installed_names()
    if not known:
        raise UsageError(
            f"{name!r} is neither a run, a checkpoint, nor one of the models "
            f"{', '.join(sorted(MODELS))}{suggestion(name, [*MODELS, *installed_names()])}"
        )
    if options.task is None and not data.files:
        raise UsageError(
            f"{name} brings no task of its own: give --task (and --level for community), or your "
            "own graph"
        )
    task = data.task(options.task, options.level)
    split, part = task.splits[options.split], options.split
    if options.graph != "all":
        split, part = (
            one_graph(split, task.objective, options.graph),
            f"{options.split}[{options.graph}]",
        )
    if path.exists():
        model: Any = load_model(path)
        title = f"checkpoint {path.name}"
    else:
        if ":" in name:
            use_model(name)  # it was named on the command line
        d = task.dimensions
        shape = Shape(
            split.graph.x.shape[1],
            task.out_channels,
            split.graph.edge_dim or None,
            d.stalk,
            d.channels,
            d.steps,
        )
        torch.manual_seed(options.seed)
        model, title = build_model(name, shape), f"{name} with fresh weights (seed {options.seed})"
    level = "" if task.level is None else f"-{task.level}"
    facts = {
        "subject": title,
        "model": type(model).__name__ if path.exists() else name,
        "run": None,
        "seed": options.seed,
        "task": task.title,
        "part": part,
        "file": safe_name(f"{task.name}{level}-{path.name}-seed{options.seed}"),
    }
    return model, split.graph, facts


def _write(folder: str, name: str, payload: dict[str, Any], certificate: Any) -> None:
    """The states first, then the certificate with their digest: a kill in between costs the
    certificate, which is made again."""
    import hashlib

    from safetensors.torch import save

    from sheafdeq.cli.subject import write_record
    from sheafdeq.records import write_bytes

    states = witness_path(Path(folder) / f"{name}.json")
    if certificate.witness is not None:
        data = save(
            {
                "first": certificate.witness.first.contiguous(),
                "second": certificate.witness.second.contiguous(),
            }
        )
        states.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(states, data)
        payload["witness_sha256"] = hashlib.sha256(data).hexdigest()
    path = write_record(folder, name, payload)
    if certificate.witness is None:
        states.unlink(missing_ok=True)  # of an earlier verdict
    print(f"wrote {path}", file=sys.stderr)


def _table(options: Any) -> int:
    """Every run below a folder: one row each, feed-forward models left out and counted.

    A record is written as soon as its run is done, and one of the same run, sources and options is
    not computed again.
    """
    from sheafdeq.records import RECORD_FILE
    from sheafdeq.training.checkpoint import load_model

    root = Path(options.all)
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    if options.task is not None or options.level is not None:
        raise UsageError("--all examines every run on its own task: leave --task and --level out")
    if data_choice(options).fields():
        raise UsageError("--all examines every run on its own data: leave files and --split out")
    known = (
        {}
        if options.fresh or not options.out
        else finished_certificates(Path(options.out), options)
    )
    rows: list[dict[str, Any]] = []
    skipped, failed = [], []
    for found in sorted(root.rglob(RECORD_FILE)):
        folder = found.parent
        if any(part.startswith(".") for part in folder.relative_to(root).parts):
            continue
        try:
            if folder.name in known and known[folder.name]["code"] != certificate_code(
                load_model(folder)
            ):
                del known[folder.name]  # of other sources
            payload = known.get(folder.name) or _one(str(folder), options)[0]
        except InputError as error:  # feed-forward: nothing to certify
            skipped.append(str(error))
            continue
        except SheafDEQError as error:
            failed.append(str(error))
            continue
        except Exception as error:  # one run that fails, however, must not cost the others
            failed.append(f"{folder}: {type(error).__name__}: {error}")
            continue
        rows.append(payload)
        reused = "reused " if folder.name in known else ""
        print(f"{reused}{' · '.join(table_row(payload))}", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: (row["task"], row["model"], row["seed"], row["run"]))
    counts: dict[str, int] = {}
    for row in rows:
        verdict = row["certificate"]["verdict"]
        counts[verdict] = counts.get(verdict, 0) + 1
    if options.out and rows:
        from sheafdeq.records import write_bytes

        command = f"sheafdeq certify --all {root} --effort {options.effort} --seed {options.seed}"
        write_bytes(
            Path(options.out) / TABLE, f"`{command}`\n\n{render(rows, 'markdown')}\n".encode()
        )
    if options.json:
        print(json.dumps({"rows": rows, "counts": counts, "skipped": skipped, "failed": failed}))
    else:
        if rows:
            print(render(rows, options.format))
        print(
            f"{len(rows)} checkpoints: "
            f"{', '.join(f'{n} {name}' for name, n in sorted(counts.items())) or 'none'}"
        )
        if skipped:
            print(f"{len(skipped)} runs have no recurrence and were left out")
        for message in failed:
            print(f"failed: {message}")
    return 1 if failed else 0
