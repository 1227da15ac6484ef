"""``sheafdeq certify``: what is proved, refuted or open about a model on a graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sheafdeq.cli.arguments import output_folder, present_folder, seed_number, whole_number
from sheafdeq.cli.predictions import add_prediction_options, refused_or_wanted, run_predictions
from sheafdeq.errors import InputError, SheafDEQError, UsageError

SCHEMA = "sheafdeq.certificate/2"
"""Version 1 called two states with small residuals *refuted*; from version 2 on that verdict needs
a proof."""
EARLIER = "sheafdeq.certificate/1"
TABLE = "certificates.md"
COLUMNS = (
    "model",
    "task",
    "seed",
    "run",
    "scheme",
    "verdict",
    "rate",
    "metric",
    "Perron root of |J|, upper bound",
    "spectral radius",
    "residual",
    "seconds",
)


def configure(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "certify",
        help="prove, refute or leave open: does a model have one equilibrium, and is it reached?",
        description="Certificates with rate, metric, domain and margins; refutations with a "
        "witness (docs/certificates.md).",
    )
    parser.add_argument(
        "subject",
        metavar="RUN|MODEL",
        nargs="?",
        help="a run directory or checkpoint, or the name of a model (then with fresh weights "
        "drawn with --seed)",
    )
    parser.add_argument(
        "--all",
        type=present_folder,
        metavar="FOLDER",
        help="one table over every trained checkpoint below FOLDER; with --out, resumable",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="with --all: examine again what --out already holds"
    )
    parser.add_argument(
        "--format",
        choices=["text", "markdown"],
        default="text",
        help="of the table of --all (default text)",
    )
    parser.add_argument(
        "--audit",
        metavar="DRAWS",
        type=whole_number(),
        help="try to catch false certificates in this many random problems",
    )
    parser.add_argument(
        "--audit-solves",
        metavar="DRAWS",
        type=whole_number(),
        help="try to catch false statuses and gradients in solves with known answers",
    )
    parser.add_argument(
        "--first",
        type=whole_number(0),
        default=0,
        help="number of the first draw of an audit (default 0)",
    )
    parser.add_argument(
        "--table",
        type=present_folder,
        metavar="FOLDER",
        help="the table from the certificates stored in FOLDER, whatever their scheme",
    )
    parser.add_argument("--task", help="task to take the graph from (default: the run's own)")
    parser.add_argument(
        "--level", type=whole_number(0, 10), help="heterophily level of a community task"
    )
    parser.add_argument(
        "--split", choices=["train", "validation", "test"], default="test", help="default test"
    )
    parser.add_argument(
        "--graph", default="0", help="number of one graph of the split, or 'all' (default 0)"
    )
    parser.add_argument(
        "--effort", choices=["quick", "normal", "thorough"], default="normal", help="default normal"
    )
    parser.add_argument(
        "--seed",
        type=seed_number,
        default=0,
        help="of the starts, and of fresh weights (default 0)",
    )
    parser.add_argument(
        "--threads", type=whole_number(1, 1024), help="threads of torch (default: torch's own)"
    )
    parser.add_argument(
        "--out",
        type=output_folder,
        metavar="DIR",
        help="write certificates (and witness states) into this folder",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_prediction_options(parser)
    parser.set_defaults(run=run)


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
        return _audit(options)
    if options.audit_solves is not None:
        return _audit_solves(options)
    if options.table is not None:
        return _stored(options)
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

    from sheafdeq.cli.subject import load_subject, one_graph
    from sheafdeq.data.catalogue import load_task
    from sheafdeq.records import RECORD_FILE
    from sheafdeq.registry import MODELS, Shape, build_model, use_model
    from sheafdeq.training.checkpoint import load_model
    from sheafdeq.training.store import safe_name
    from sheafdeq.user_models import installed_names

    path = Path(name)
    if (path / RECORD_FILE).is_file() and options.task is None and options.level is None:
        subject = load_subject(path, options.split, options.graph)
        facts = {
            "subject": f"{subject.record.model.title}, seed {subject.record.seed}, run "
            f"{subject.record.id[:8]}",
            "model": subject.name,
            "run": subject.record.id,
            "seed": subject.record.seed,
            "task": subject.task.title,
            "part": subject.graph_label,
            "file": subject.file_name,
        }
        return subject.model, subject.split.graph, facts
    if options.task is None:
        raise UsageError(
            f"{name} brings no task of its own: give --task (and --level for community)"
        )
    task = load_task(options.task, level=options.level)
    split, part = task.splits[options.split], options.split
    if options.graph != "all":
        split, part = (
            one_graph(split, task.objective, options.graph),
            f"{options.split}[{options.graph}]",
        )
    if path.exists():
        model: Any = load_model(path)
        title = f"checkpoint {path.name}"
    elif name in MODELS or ":" in name or name in installed_names():
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
    else:
        raise UsageError(
            f"{name!r} is neither a run, a checkpoint, nor one of the models "
            f"{', '.join(sorted(MODELS))}"
        )
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


def witness_path(record: Path) -> Path:
    """Where the two states of a record's witness are."""
    return record.with_suffix(".witness.safetensors")


def certificate_code(model: Any) -> str:
    """Digest of the code behind a certificate: the examination, the model's rule, the model
    (:mod:`sheafdeq.identity`)."""
    from sheafdeq.certificates import certify, rule_for
    from sheafdeq.identity import code_identity, model_roles

    return code_identity(
        {**model_roles(model), "certificate": [certify, rule_for(type(model))]}
    ).digest


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
    known = {} if options.fresh or not options.out else _finished(Path(options.out), options)
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


def _stored(options: Any) -> int:
    """The table from the records of a folder alone, whatever scheme made them."""
    from sheafdeq.errors import RecordError
    from sheafdeq.records import read_sealed, write_bytes

    root = Path(options.table)
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    rows, unread = [], []
    for path in sorted(root.glob("*.json")):
        try:
            payload = read_sealed(path)
        except RecordError as error:
            unread.append(str(error))
            continue
        if (
            isinstance(payload, dict)
            and payload.get("schema") in (SCHEMA, EARLIER)
            and payload.get("run")
        ):
            rows.append(payload)
    rows.sort(key=lambda row: (row["task"], row["model"], row["seed"], row["run"]))
    if options.json:
        print(json.dumps({"rows": rows, "unread": unread}))
    else:
        print(render(rows, options.format))
        for message in unread:
            print(f"not read: {message}", file=sys.stderr)
    if options.out:
        command = f"sheafdeq certify --table {options.table} --out {options.out}"
        write_bytes(
            Path(options.out) / TABLE, f"`{command}`\n\n{render(rows, 'markdown')}\n".encode()
        )
    return 1 if unread else 0


def _finished(folder: Path, options: Any) -> dict[str, dict[str, Any]]:
    """Run id -> certificate record of the same options, and no less effort; altered records are
    made again."""
    from sheafdeq.certificates import EFFORTS
    from sheafdeq.errors import RecordError
    from sheafdeq.records import read_sealed

    part = options.split if options.graph == "all" else f"{options.split}[{options.graph}]"
    # in ascending order: a greater effort will do
    enough = list(EFFORTS)[list(EFFORTS).index(options.effort) :]
    wanted = {"schema": SCHEMA, "part": part, "starts_seed": options.seed}
    found = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            payload = read_sealed(path)
        except RecordError:
            continue
        if (
            not isinstance(payload, dict)
            or not payload.get("run")
            or payload.get("effort") not in enough
        ):
            continue
        if payload["certificate"].get("witness") is not None and not _has_witness(
            witness_path(path), payload.get("witness_sha256")
        ):
            continue  # a verdict without its states is made again
        if all(payload.get(key) == value for key, value in wanted.items()):
            found[payload["run"]] = payload
    return found


def _has_witness(path: Path, digest: str | None) -> bool:
    """Whether the two states are there, and are the ones the record was written with."""
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False


def verdict_text(payload: dict[str, Any]) -> str:
    """The verdict of a record in today's words; what an earlier scheme called refuted without a
    proof is two candidates."""
    certificate = payload["certificate"]
    verdict, witness = certificate["verdict"], certificate["witness"]
    if payload.get("schema") == EARLIER and verdict == "refuted" and not witness["proved"]:
        return "two candidates (scheme 1 said refuted)"
    if witness is not None:
        return verdict
    radius = "" if certificate["radius"] is None else f", radius {certificate['radius']:.2g}"
    return f"{verdict} ({certificate['level']}{radius})"


def table_row(payload: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table, in the order of :data:`COLUMNS`."""
    certificate = payload["certificate"]
    local = certificate["observations"].get("at the reached state", {})

    def number(value: Any, form: str = ".4f") -> str:
        return format(value, form) if isinstance(value, int | float) else "-"

    return (
        payload["model"],
        payload["task"],
        str(payload["seed"]),
        (payload["run"] or "-")[:8],
        payload["schema"].rpartition("/")[2],
        verdict_text(payload),
        number(certificate["rate"]),
        (certificate["metric"] or "-").split(",")[0].split(" (")[0],
        number(local.get("Perron root of |J|, upper")),
        number(local.get("spectral radius of J (estimate)")),
        number(certificate["observations"].get("residual"), ".1e"),
        f"{certificate['seconds']:.0f}",
    )


def render(rows: list[dict[str, Any]], form: str) -> str:
    """The table as aligned text or Markdown."""
    lines = [COLUMNS, *map(table_row, rows)]
    if form == "markdown":
        written = [
            "| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines
        ]
        return "\n".join([written[0], "|" + " --- |" * len(COLUMNS), *written[1:]])
    widths = [max(len(line[k]) for line in lines) for k in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _audit(options: Any) -> int:
    from sheafdeq.certificates.audit import audit

    if options.audit < 1:
        raise UsageError(f"--audit needs at least one draw, got {options.audit}")

    def progress(number: int, report: Any) -> None:
        if report.draws % 100 == 0:
            print(report, file=sys.stderr, flush=True)

    report = audit(options.audit, seed=options.seed, first=options.first, progress=progress)
    payload = {
        "schema": "sheafdeq.audit/2",
        "command": f"sheafdeq certify --audit {options.audit} --seed {options.seed} --first "
        f"{options.first}",
        "draws": report.draws,
        "attacks": dict(sorted(report.attacks.items())),
        "verdicts": dict(sorted(report.verdicts.items())),
        "tightest": report.tightest,
        "violations": [vars(violation) for violation in report.violations],
    }
    if options.out:
        from sheafdeq.cli.subject import write_record

        print(
            f"wrote {write_record(options.out, f'audit-{options.seed}-{options.first}', payload)}",
            file=sys.stderr,
        )
    print(json.dumps(payload) if options.json else str(report))
    for violation in report.violations:
        what = f"draw {violation.draw} ({violation.attack}), {violation.model} {violation.claim}"
        print(f"FALSE: {what}: {violation.observed}", file=sys.stderr)
    return 1 if report.violations else 0


def _audit_solves(options: Any) -> int:
    from sheafdeq.certificates.solve_audit import audit_solves

    if options.audit_solves < 1:
        raise UsageError(f"--audit-solves needs at least one draw, got {options.audit_solves}")

    def progress(number: int, report: Any) -> None:
        if report.draws % 500 == 0:
            print(report, file=sys.stderr, flush=True)

    report = audit_solves(
        options.audit_solves, seed=options.seed, first=options.first, progress=progress
    )
    payload = {
        "schema": "sheafdeq.solve-audit/1",
        "command": f"sheafdeq certify --audit-solves {options.audit_solves} --seed {options.seed} "
        f"--first {options.first}",
        "draws": report.draws,
        "graphs": report.graphs,
        "statuses": dict(sorted(report.statuses.items())),
        "tightest_residual": report.tightest_residual,
        "tightest_gradient": report.tightest_gradient,
        "violations": [vars(violation) for violation in report.violations],
    }
    if options.out:
        from sheafdeq.cli.subject import write_record

        print(
            "wrote "
            f"{write_record(options.out, f'solve-audit-{options.seed}-{options.first}', payload)}",
            file=sys.stderr,
        )
    print(json.dumps(payload) if options.json else str(report))
    for violation in report.violations:
        print(
            f"FALSE: draw {violation.draw}, {violation.graph}: {violation.claim}; "
            f"{violation.observed}",
            file=sys.stderr,
        )
    return 1 if report.violations else 0
