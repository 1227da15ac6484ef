"""``sheafdeq predict``: what a finished run says of a graph, labelled or not, as a file."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, output_file
from sheafdeq.cli.data_options import PARTS, DataChoice, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.printable import csv_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from sheafdeq.data import Graph
    from sheafdeq.evaluation import Prediction
    from sheafdeq.records import RunRecord

ENDINGS = (".npz", ".csv", ".json")
GRAPH_CLASSES = "graph classification"


HELP = "outputs, labels, residual and status of a finished run on your own graph"


def configure(parser: Parser) -> None:
    """Run a trained model on a graph, labelled or not, and write for every node (or graph, of a
    model that judges graphs) its outputs and label, how far one more step would move it, and how
    its graph's solve ended. A model with a guarantee is solved until it is at rest, the others run
    as trained. Without files of your own: on the run's own task."""
    add_runs(
        parser,
        "run_path",
        help="a finished run: its directory, or the beginning of its id",
    )
    add_data_options(parser, parts=PARTS)
    parser.flag("--double", "compute in float64")
    parser.threads()
    parser.value(
        "--out",
        output_file(*ENDINGS),
        "what to write: .npz (arrays), .csv (a row for each node) or .json",
        metavar="FILE",
    )
    parser.answers(run)


def run(options: argparse.Namespace) -> int:
    """Predict, write, and say how the solves ended."""
    import torch

    from sheafdeq.evaluation import load, predict
    from sheafdeq.evaluation.evaluate import trained_scale

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    checkpoint = load(options.run_path)
    record, model = checkpoint.record, checkpoint.model
    graph, names = _graph(Path(options.run_path), record, data_choice(options), options.split)
    dtype = torch.float64 if options.double else next(model.parameters()).dtype
    model, graph = model.to(dtype), graph.to(dtype)
    model.check(graph)
    kind = kind_of(record)
    classes = kind.endswith("classification")
    prediction = predict(
        model,
        graph,
        classes=classes,
        whole_graphs=kind == GRAPH_CLASSES,
        scale=1.0 if classes else trained_scale(record),
    )
    words = record.task.options.get("classes")
    table = Table(prediction, list(names), words if isinstance(words, list) else [])
    if options.out:
        _write(Path(options.out), table, record)
    _print(options, record, table)
    return 0


def kind_of(record: RunRecord) -> str:
    """What the run was trained for; records without the word are known by their task."""
    from sheafdeq.data.benchmark_sets import GRAPH_SETS

    if record.task.kind is not None:
        return record.task.kind
    if record.task.name in GRAPH_SETS:
        return GRAPH_CLASSES
    return "node classification" if record.task.score.endswith("(%)") else "node regression"


def _graph(
    path: Path, record: RunRecord, data: DataChoice, part: str
) -> tuple[Graph, Sequence[str]]:
    """The graph, and what its nodes are called where a table says so."""
    from sheafdeq.cli.subject import task_of_run

    if data.files:
        own = data.read(record.task.options.get("classes"))
        return own.graph, own.node_names
    return task_of_run(path, record, data).splits[part].graph, ()


class Table:
    """A prediction with the names of nodes and classes."""

    def __init__(self, prediction: Prediction, names: list[str], words: list[str]) -> None:
        self.prediction = prediction
        count = prediction.outputs.shape[0]
        self.names: list[Any] = list(names) or list(range(count))
        self.words = words

    def label(self, value: int) -> Any:
        """A class, by its word where it has one."""
        return self.words[value] if value < len(self.words) else value

    def graphs(self) -> list[dict[str, Any]]:
        """One row for each graph."""
        p = self.prediction
        steps = None if p.graph_steps is None else p.graph_steps.tolist()
        rows = []
        for number, status in enumerate(p.graph_status):
            row: dict[str, Any] = {"graph": number, "status": status}
            row["residual"] = _value(p.graph_residual, number)
            row["steps"] = None if steps is None else steps[number]
            if p.graph_outputs is not None:
                row["outputs"] = p.graph_outputs[number].tolist()
                if p.labels is not None:
                    row["label"] = self.label(int(p.labels[number]))
            rows.append(row)
        return rows

    def nodes(self) -> list[dict[str, Any]]:
        """One row for each node; of a model that judges graphs, the label is the graph's."""
        p = self.prediction
        labels = None
        if p.labels is not None:
            of_node = p.labels if p.graph_outputs is None else p.labels[p.graph_of_node]
            labels = of_node.tolist()
        graphs, outputs = p.graph_of_node.tolist(), p.outputs.tolist()
        return [
            {
                "node": name,
                "graph": graphs[number],
                **({} if labels is None else {"label": self.label(labels[number])}),
                "outputs": outputs[number],
                "residual": _value(p.residual, number),
                "status": p.graph_status[graphs[number]],
            }
            for number, name in enumerate(self.names)
        ]


def _value(values: Tensor | None, number: int) -> float | None:
    from sheafdeq.records import finite

    return None if values is None else finite(float(values[number]))


def _write(path: Path, table: Table, record: RunRecord) -> None:
    from sheafdeq.records import write_bytes

    path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.suffix.lower()
    if ending == ".json":
        facts = {"run": record.id, "model": record.model.name, "trained_on": record.task.title}
        content = {**facts, "nodes": table.nodes(), "graphs": table.graphs()}
        write_bytes(path, (json.dumps(content) + "\n").encode())
    elif ending == ".csv":
        write_bytes(path, _csv(table).encode())
    else:
        write_bytes(path, _npz(table))


def _csv(table: Table) -> str:
    """A row for each node; of a model that judges graphs, one for each graph."""
    whole = table.prediction.graph_outputs is not None
    rows = table.graphs() if whole else table.nodes()
    width = table.prediction.outputs.shape[1]
    fixed = [key for key in (rows[0] if rows else {}) if key != "outputs"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*fixed, *(f"output{k}" for k in range(width))])
    for row in rows:
        cells = [csv_text(row[key]) if isinstance(row[key], str) else row[key] for key in fixed]
        writer.writerow([*cells, *map(repr, row["outputs"])])
    return stream.getvalue()


def _npz(table: Table) -> bytes:
    """Arrays without Python objects, so that no reader has to unpickle."""
    import numpy as np

    p = table.prediction
    arrays: dict[str, Any] = {
        "outputs": p.outputs.numpy(),
        "graph": p.graph_of_node.numpy(),
        "graph_status": np.array(p.graph_status),
        "node": np.array(table.names),
        "classes": np.array(table.words, dtype=np.str_),
    }
    for name, values in (
        ("labels", p.labels),
        ("residual", p.residual),
        ("graph_residual", p.graph_residual),
        ("graph_steps", p.graph_steps),
        ("graph_outputs", p.graph_outputs),
    ):
        if values is not None:
            arrays[name] = values.numpy()
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _print(options: argparse.Namespace, record: RunRecord, table: Table) -> None:
    p = table.prediction
    counts: dict[str, int] = {}
    for value in [] if p.labels is None else p.labels.tolist():
        word = str(table.label(value))
        counts[word] = counts.get(word, 0) + 1
    residual = None if p.graph_residual is None else _value(p.graph_residual.max()[None], 0)
    if options.json:
        facts = {
            "run": record.id,
            "model": record.model.name,
            "nodes": len(table.names),
            "graphs": len(p.graph_status),
            "statuses": p.status_counts(),
            "residual": residual,
            "distance": p.distance,
            "labels": counts,
            "out": options.out,
        }
        print(json.dumps(facts))
        return
    ended = ", ".join(f"{count} {status}" for status, count in p.status_counts().items())
    solved = "" if residual is None else f"; largest residual {residual:.3g} ({p.distance})"
    print(
        f"{record.model.title}, run {record.id[:8]}, trained on {record.task.title}: "
        f"{len(table.names):,} nodes in {len(p.graph_status):,} graph(s)"
    )
    print(f"  solves     {ended}{solved}")
    if counts:
        named = ", ".join(f"{word} {counts[word]:,}" for word in sorted(counts))
        print(f"  labels     {named if len(named) < 400 else f'{len(counts):,} classes'}")
    print(f"  wrote      {options.out}" if options.out else "  nothing written: give --out FILE")
