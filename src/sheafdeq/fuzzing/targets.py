"""The doors, and what is thrown at them. A target takes a random source and an empty folder, and
does what a user would.

Most inputs begin as valid ones and are then damaged in a few places, because nonsense is refused at
the first byte and finds nothing. Damaged records and checkpoints are sealed again: an attacker can
compute a SHA-256 too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["BROKEN", "TARGETS", "prepare"]

Target = Callable[[Random, Path], None]
PREPARED: dict[str, Any] = {}

NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    0.5,
    -0.0,
    1e-320,
    1e308,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    10**9,
    10**30,
]
WORDS = [
    "",
    "abc",
    "../..",
    "/etc/passwd",
    "\x1b[2J",
    "=1+1",
    r"$\frac{$",
    "a\nb",
    "\ud800",
    "true",
    "null",
    "NaN",
    "1e999",
    "-1",
    "9" * 5000,
    "__class__",
    "sheafdeq",
    "community",
    "\u202e",
    "<b>",
    "x" * 3000,
    "\0",
]


def nested(depth: int, kind: type = list) -> Any:
    """A list in a list in a list, or a dictionary in a dictionary."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def hostile(random: Random) -> Any:
    """One JSON value that nobody expects."""
    choice = random.randrange(8)
    if choice < 3:
        return random.choice(NUMBERS)
    if choice < 5:
        return random.choice(WORDS[:-1])
    return random.choice(
        [
            None,
            True,
            False,
            [],
            {},
            [1, "a", None],
            {"a": {}},
            nested(30),
            nested(400),
            [0] * 500,
            {"": ""},
        ]
    )


def damaged_json(random: Random, value: Any, changes: int = 2) -> Any:
    """A copy with some values replaced, some keys removed and some added."""
    value = json.loads(json.dumps(value))
    for _ in range(random.randrange(changes + 1)):
        holder: Any = value
        for _ in range(random.randrange(1, 6)):
            keys = (
                list(holder)
                if isinstance(holder, dict)
                else list(range(len(holder)))
                if isinstance(holder, list)
                else []
            )
            if not keys:
                break
            key = random.choice(keys)
            inner = holder[key]
            if isinstance(inner, dict | list) and inner and random.random() < 0.75:
                holder = inner
                continue
            act = random.randrange(6)
            if act == 0 and isinstance(holder, dict):
                del holder[key]
            elif act == 1 and isinstance(holder, dict):
                holder[random.choice(["extra", "", "__proto__", "seed"])] = hostile(random)
            else:
                holder[key] = hostile(random)
            break
    return value


def damaged_bytes(random: Random, data: bytes) -> bytes:
    """A few flipped, removed, doubled or inserted bytes, or half the file."""
    found = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        act, place = random.randrange(5), random.randrange(len(found) + 1)
        if act == 0:
            del found[place:]
        elif act == 1:
            del found[place : place + random.randrange(1, 9)]
        elif act == 2:
            found[place:place] = found[max(0, place - 40) : place]
        elif act == 3:
            found[place:place] = random.randbytes(random.randrange(1, 9))
        elif found:
            found[place % len(found)] ^= 1 << random.randrange(8)
    return bytes(found)


# ---------------------------------------------------------------------- what valid input looks like


def prepare(folder: Path) -> None:
    """Make one run, checkpoints, and the records of a study, to be damaged later."""
    import torch_geometric  # noqa: F401 - its first import opens a socket to see whether there is IPv6

    from sheafdeq.cli import main
    from sheafdeq.records import read_sealed
    from sheafdeq.registry import COMMUNITY, MODELS, build_model
    from sheafdeq.training.checkpoint import save_checkpoint
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.run import train

    folder.mkdir(parents=True)
    config = TrainingConfig.parse(
        {
            "task": {"name": "counting", "options": {"chains": 6}},
            "model": "sheafdeq",
            "max_epochs": 1,
            "test_every": 1,
        }
    )
    run = train(config, out=folder / "runs").path
    assert run is not None
    PREPARED["run"] = run
    PREPARED["record"] = read_sealed(run / "record.json")
    PREPARED["checkpoints"] = []
    for name in ("sheafdeq", "sheaf-cascade", "ignn", "mlp", "gat"):
        place = folder / f"checkpoint-{name}"
        place.mkdir()
        save_checkpoint(
            place, build_model(name, COMMUNITY).state_dict(), name, MODELS[name].options, COMMUNITY
        )
        PREPARED["checkpoints"].append(
            (
                read_sealed(place / "checkpoint.json"),
                (place / "checkpoint.safetensors").read_bytes(),
            )
        )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for command, extra in (
            ("diagnose", ["--iterations", "3", "--no-spectrum"]),
            ("async", ["--samples", "1", "--work", "3"]),
        ):
            main([command, str(run), *extra, "--graph", "all", "--out", str(folder / command)])
    PREPARED["studies"] = {
        "diagnostics": read_sealed(next((folder / "diagnose").glob("*.json"))),
        "async": read_sealed(next((folder / "async").glob("*.json"))),
    }


# ---------------------------------------------------------------------- loaders


def npz(random: Random, folder: Path) -> None:
    """A user's own graph in an npz archive."""
    import numpy as np

    from sheafdeq.data import task_from_npz

    generator = np.random.default_rng(random.randrange(2**32))
    n, e = random.choice([1, 2, 7, 30, 70]), random.choice([0, 1, 60])
    arrays: dict[str, Any] = {
        "x": generator.normal(size=(n, random.choice([0, 1, 3]))).astype(
            random.choice(["f2", "f4", "f8", ">f4"])
        ),
        "edge_index": generator.integers(0, n, (2, e)).astype(
            random.choice(["i8", "i4", "u1", "i8"])
        ),
        "y": random.choice(
            [
                generator.integers(-1, 3, n),
                generator.normal(size=n),
                generator.integers(0, 2, (n, 1)),
            ]
        ),
    }
    if random.random() < 0.3:
        part = generator.integers(0, 3, n)
        arrays |= {"train_mask": part == 0, "val_mask": part == 1, "test_mask": part == 2}
    if random.random() < 0.2:
        arrays["edge_attr"] = generator.normal(size=(e, 2))
    for _ in range(random.randrange(3)):
        key = random.choice(list(arrays))
        arrays[key] = random.choice(
            [
                np.array([None] * n, dtype=object),
                np.zeros((0,)),
                np.full((n,), 10**8),
                np.full((n, 2), np.nan),
                np.array(["a"] * n),
                np.zeros((3, 3, 3)),
                np.array(2**64 - 1, dtype=np.uint64),
                arrays[key].T,
                np.full((n, 1), 1e30),
                np.full(n, np.iinfo(np.int64).min),
                np.zeros(n, dtype="m8[s]"),
                np.zeros(n, dtype="c16"),
            ]
        )
    stream = io.BytesIO()
    random.choice([np.savez, np.savez_compressed])(stream, **arrays)
    content = stream.getvalue()
    if random.random() < 0.3:
        with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                random.choice(["unused.npy", "x.npy", "../x.npy"]),
                b"\0" * random.choice([10, 10**7, 10**8]),
            )
        content = stream.getvalue()
    if random.random() < 0.3:
        content = damaged_bytes(random, content)
    (folder / "graph.npz").write_bytes(content)
    seed = random.choice([None, 0, 3, 5])
    task_from_npz(folder / "graph.npz", seed=seed, split=random.choice([0, 0, 1])).describe()


def csv(random: Random, folder: Path) -> None:
    """A user's own graph in two tables."""
    from sheafdeq.data import task_from_csv

    n = random.choice([3, 9, 40])
    columns = [
        "node",
        "a",
        random.choice(["label", "target"]),
        *(["split"] if random.random() < 0.5 else []),
    ]
    cells = [
        [str(i), str(i / 7), str(i % 3), ["train", "val", "test"][i % 3]][: len(columns)]
        for i in range(n)
    ]
    edges = [[str(random.randrange(n)), str(random.randrange(n))] for _ in range(2 * n)]
    for table in (cells, edges):
        for _ in range(max(0, random.randrange(-2, 3))):
            row = random.choice(table)
            row[random.randrange(len(row))] = random.choice(
                [*WORDS[:-5], "nan", "1e999", '"', ",", "0x10", "١٢"]
            )
    if random.random() < 0.1:
        columns += [f"c{k}" for k in range(20_000)]
    texts = []
    for head, table in ((columns, cells), (["source", "target"], edges)):
        texts.append(
            "\n".join(",".join(row) for row in [head, *table]).encode("utf-8", "surrogatepass")
        )
    for name, text in zip(("n.csv", "e.csv"), texts, strict=True):
        (folder / name).write_bytes(damaged_bytes(random, text) if random.random() < 0.3 else text)
    seed = random.choice([None, 0, 1, 2])
    task_from_csv(
        folder / "n.csv", folder / "e.csv", undirected=random.random() < 0.5, seed=seed
    ).describe()


def pickles(random: Random, folder: Path) -> None:
    """The pickles of the citation graphs."""
    import numpy as np
    from scipy import sparse

    from sheafdeq.data.pickles import read_pickle

    choice = random.randrange(6)
    protocol = random.choice([0, 2, 2, 3, 4])
    if choice == 0:
        content = pickle.dumps(
            np.arange(random.randrange(50)).reshape(-1, 1).astype(random.choice(["f4", "i8", "O"])),
            protocol,
        )
    elif choice == 1:
        content = pickle.dumps(sparse.random(9, 8, 0.3, "csr", random_state=1), protocol)
    elif choice == 2:
        content = pickle.dumps({k: [random.randrange(9)] * 3 for k in range(20)}, protocol)
    elif choice == 3:
        tuples = random.choice([b"\x85" * 50_000, b"q\x00h\x00\x86" * 60, b"\x85" * 3])
        content = b"\x80\x02)" + tuples + random.choice([b".", b"}\x86.", b"K\x01s."])
    elif choice == 4:
        name = random.choice(
            [
                b"os\nsystem",
                b"builtins\neval",
                b"numpy\ndtype",
                b"collections\ndefaultdict",
                b"posix\nfork",
            ]
        )
        content = b"\x80\x02c" + name + b"\nX\x08\x00\x00\x00touch me\x85R."
    else:
        content = bytes(
            random.choices(
                b"()]}.KMJNX\x85\x86\x87q\x00h\x00RbtseuacB\x80\x02\x88\x89", k=random.randrange(60)
            )
        )
    if random.random() < 0.4:
        content = damaged_bytes(random, content)
    read_pickle(content)


def cache(random: Random, folder: Path) -> None:
    """A planted cache of parsed data, sealed as it should be."""
    import numpy as np
    from safetensors.numpy import save

    from sheafdeq.data.benchmark_sets import NODE_SETS
    from sheafdeq.data.benchmarks import _checked, _features
    from sheafdeq.data.cache import cached

    source = NODE_SETS["texas"]
    n = source.nodes
    arrays: dict[str, Any] = {
        "x_data": np.ones(4, dtype=np.float32),
        "x_indices": np.arange(4, dtype=np.int32),
        "x_indptr": np.array([0] * (n - 3) + [1, 2, 3, 4]),
        "x_shape": np.array([n, random.choice([5, 10**12, -1])]),
        "target": np.zeros(n, dtype=np.int64),
        "edges": np.zeros((2, 5), dtype=np.int64),
        **{part: np.zeros((10, n), dtype=bool) for part in ("train", "validation", "test")},
    }
    for _ in range(random.randrange(3)):
        key = random.choice(list(arrays))
        arrays[key] = random.choice(
            [np.zeros(0), np.full(arrays[key].shape, 10**9), np.zeros((2, 2, 2)), arrays[key][:1]]
        )
    recipe = folder / "parsed"
    cached(folder, "texas", {}, lambda: {"probe": np.zeros(1)})
    (path,) = recipe.glob("*.safetensors")
    content = save(arrays) if random.random() < 0.7 else damaged_bytes(random, save(arrays))
    path.write_bytes(content)
    path.with_suffix(".sha256").write_text(hashlib.sha256(content).hexdigest())
    _features(_checked(source, cached(folder, "texas", {}, dict)))


# ---------------------------------------------------------------------- records and checkpoints


def _seal(random: Random, path: Path, payload: Any) -> None:
    """Write a record: usually sealed, sometimes damaged afterwards."""
    from sheafdeq.records import seal

    try:
        data = seal(payload)
    except (ValueError, TypeError, RecursionError):  # NaN, infinity
        data = json.dumps({"payload": 1}).encode()
    path.write_bytes(data if random.random() < 0.85 else damaged_bytes(random, data))


def records(random: Random, folder: Path) -> None:
    """Run records, through every table in every format."""
    from sheafdeq.records import read_records
    from sheafdeq.report.selection import select, summarise
    from sheafdeq.report.tables import FORMATS, overview_table, paper_table, render

    for number in range(random.randrange(1, 4)):
        payload = {**PREPARED["record"], "id": f"{number:064x}"}
        if random.random() < 0.3:
            payload["task"] = {**payload["task"], "name": "community", "level": 7}
        _seal(random, folder / f"{number}.run.json", damaged_json(random, payload))
    summaries = summarise(read_records(folder))
    full, metric = random.random() < 0.5, random.choice([None, None, "mse", "nothing"])
    for table in (
        overview_table(summaries, select, full=full, metric=metric),
        paper_table("community", summaries, select, full=full),
    ):
        render(table, random.choice(FORMATS)).encode("utf-8")


def figures(random: Random, folder: Path) -> None:
    """Records of studies, drawn."""
    import matplotlib.pyplot as plt

    from sheafdeq.report.figures import draw_all, read_sources

    kind = random.choice(["diagnostics", "async"])
    (folder / kind).mkdir()
    for number in range(random.randrange(1, 3)):
        payload = PREPARED["studies"][kind]
        _seal(random, folder / kind / f"{number}.json", damaged_json(random, payload, changes=3))
    chosen = {"diagnostics": ["continued", "settling", "frontier"], "async": ["async"]}[kind]
    try:
        for drawing in draw_all(read_sources(folder), [random.choice(chosen)]):
            drawing.figure.draw_without_rendering()  # lays out and parses every text
    finally:
        plt.close("all")


def checkpoints(random: Random, folder: Path) -> None:
    """Checkpoints with sizes nobody stored, and damaged tensors under the right seal."""
    from sheafdeq.training.checkpoint import load_model

    facts, tensors = random.choice(PREPARED["checkpoints"])
    facts = json.loads(json.dumps(facts))
    if random.random() < 0.4:
        start = 8 + int.from_bytes(tensors[:8], "little")  # of the numbers, after the header
        tensors = damaged_bytes(random, tensors[:start]) + tensors[start:]
        facts["tensors"] = hashlib.sha256(tensors).hexdigest()
    if random.random() < 0.5:
        facts["shape"][random.choice(list(facts["shape"]))] = random.choice(
            [10**4, 10**5, 10**6, 10**9, hostile(random)]
        )
    facts = damaged_json(random, facts, changes=1)
    _seal(random, folder / "checkpoint.json", facts)
    (folder / "checkpoint.safetensors").write_bytes(tensors)
    load_model(folder)


# ---------------------------------------------------------------------- configurations and options

_TOML = [
    "1",
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "1e-320",
    "true",
    '"abc"',
    "[]",
    "[1, 2]",
    "{}",
    "{ kind = 1 }",
    "9" * 5000,
    "1979-05-27",
    "[" * 500 + "]" * 500,
    "99999999999999999999",
    '"\\u001b[2J"',
    '"../.."',
    "[[[[1]]]]",
    "{ shift = 'abc' }",
    "0x7fffffffffffffff",
]


def configurations(random: Random, folder: Path) -> None:
    """TOML files of runs and of sweeps."""
    from sheafdeq.registry import COMMUNITY, build_model
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.sweep import Sweep

    lines = ['model = "sheafdeq"', 'task = "counting"', "seed = 3"]
    keys = [
        *TrainingConfig.model_fields,
        "task.name",
        "model.options",
        "schedule.kind",
        "penalties.residual_weight",
        "a.b.c",
        '""',
    ]
    for _ in range(random.randrange(4)):
        line = f"{random.choice(keys)} = {random.choice(_TOML)}"
        lines = [kept for kept in lines if kept.split(" ")[0] != line.split(" ")[0]] + [line]
    if random.random() < 0.4:
        name, model = random.choice(["1", '"../.."', '"mine"']), random.choice([*_TOML, '"ignn"'])
        grid = random.choice(["{ kappa = 0.9 }", "{ kappa = 3 }", "1", ""])
        lines = [
            f"name = {name}",
            "seeds = [1, 2]",
            '[[tasks]]\nname = "counting"',
            f"[[models]]\nname = {model}",
            f"options = [{grid}]",
            "[training]",
            lines[-1],
        ]
    text = "\n".join(lines).encode()
    path = folder / "run.toml"
    path.write_bytes(damaged_bytes(random, text) if random.random() < 0.3 else text)
    if b"seeds" in text:
        for config in Sweep.load(path).configs()[:3]:
            config.payload()
    else:
        config = TrainingConfig.read(path)
        build_model(config.model.name, COMMUNITY, **config.model.options)
        TrainingConfig.parse(config.payload())


def options(random: Random, folder: Path) -> None:
    """Options of models and tasks, of any type and size."""
    from sheafdeq.data.catalogue import entries, load_task
    from sheafdeq.registry import COMMUNITY, MODELS, build_model

    if random.random() < 0.7:
        name = random.choice([*MODELS, "shefdeq", ""])
        known = list(MODELS[name].options) if name in MODELS else []
        given = {
            random.choice([*known, "steps", "dropout"]): _option(random)
            for _ in range(random.randrange(3))
        }
        build_model(name, COMMUNITY, **given)
        return
    small: dict[str, dict[str, Any]] = {
        "counting": {"chains": 6},
        "community": {"nodes": 90, "k": 3},
        "sums": {"chains": 6, "length": 4},
        "coordinates": {"graphs": 10},
    }
    name = random.choice([*small, *(entry.name for entry in entries())])
    known = [key for entry in entries() if entry.name == name for key in entry.options]
    given = {
        random.choice([*known, "sedd"]): _option(random) for _ in range(random.randrange(1, 3))
    }
    load_task(name, root=folder, **{**small.get(name, {}), **given})


def _option(random: Random) -> Any:
    return random.choice(
        [
            hostile(random),
            0.5,
            1.5,
            3,
            7,
            100,
            True,
            "implicit",
            "full",
            "truncated:3",
            "truncated:-1",
            [3, 2],
            1e-3,
        ]
    )


def commands(random: Random, folder: Path) -> None:
    """Command lines with a wrong word or two, and commands over damaged files."""
    from sheafdeq.cli import main

    run = folder / "run"
    run.mkdir()
    for name in ("record.json", "checkpoint.json", "checkpoint.safetensors"):
        (run / name).write_bytes((PREPARED["run"] / name).read_bytes())
    if random.random() < 0.3:
        _seal(random, run / "record.json", damaged_json(random, PREPARED["record"]))
    (folder / "file").write_text("")
    train = [
        "train",
        "--task",
        "counting",
        "--task-set",
        "chains=6",
        "--model",
        "sheafdeq",
        "--epochs",
        "0",
    ]
    words = random.choice(
        [
            train,
            [*train, "--out", "runs"],
            ["tasks", "show", "counting", "--option", "chains=6"],
            ["tasks"],
            ["models", "gcn"],
            ["tables", "all", "--results", "run"],
            ["diagnose", "run", "--iterations", "2", "--no-spectrum", "--graph", "all"],
            ["figures", "--results", ".", "--out", "drawn"],
            ["sweep", "status", "smoke", "--out", "runs"],
            ["sweep", "list"],
            ["settle", "run", "--out", "runs", "--stage", "epochs=0"],
            ["certify", "run", "--effort", "quick", "--graph", "0"],
            ["doctor"],
        ]
    ).copy()
    for _ in range(random.randrange(3)):
        word = random.choice(
            [
                "--seed",
                "--epochs",
                "--level",
                "--threads",
                "--out",
                "--set",
                "--config",
                "--json",
                "--npz",
                "--damping",
                "--nothing",
                "-x",
            ]
        )
        value = random.choice(
            [
                "file",
                "file/below",
                "n" * 300,
                "shift=abc",
                "=",
                "a=b",
                "é",
                *WORDS[:-1],
                *map(str, NUMBERS[5:]),
            ]
        )
        # where to write is the user's to say: stay at home
        if word in ("--out", "--config", "--npz"):
            value = random.choice(
                ["file", "file/below", "n" * 300, "run", "new", "run/record.json"]
            )
        if random.random() < 0.5:
            words += [word, value]
        else:
            words[random.randrange(len(words))] = value if "/" not in value else "a b"
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    if code not in (0, 1, 2) or "unexpected" in said.getvalue() or "Traceback" in said.getvalue():
        raise AssertionError(f"{words}: exit code {code}: {said.getvalue()[-200:]}")


# ---------------------------------------------------------------------- native calls


def _tensor(random: Random, good: Any) -> Any:
    """A tensor in a guise: other type, layout, shape, view or values."""
    import torch

    guise = random.randrange(16)
    if guise == 0:
        return good.to(
            random.choice(
                [
                    torch.int8,
                    torch.int32,
                    torch.float16,
                    torch.bfloat16,
                    torch.float64,
                    torch.bool,
                    torch.complex64,
                ]
            )
        )
    if guise == 1:
        return good.flatten()
    if guise == 2:
        return good[..., :0]
    if guise == 3:
        return good.T
    if guise == 4 and good.is_floating_point():
        return good * random.choice([0, 1e20, -1e20, 1e38, float("nan"), float("inf"), 1e-40])
    if guise == 5 and not good.is_floating_point():
        return good + random.choice([-1, 1, 10**6, 2**62])
    if guise == 6:
        return torch.stack([good, good], dim=-1)[..., 0]
    if guise == 7:
        return good.as_subclass(type("Odd", (torch.Tensor,), {}))
    if guise == 8 and good.is_floating_point():
        return (
            torch.complex(torch.zeros_like(good), good).conj().imag
            if good.dtype == torch.float32
            else -good
        )
    if guise == 9:
        return good.to_sparse() if good.dim() == 2 else good[None]
    if guise == 10:
        return good.to("meta")
    if guise == 11:
        return random.choice([None, 3, "abc", good.tolist(), good.numpy()])
    if guise == 12 and not good.is_floating_point() and good.dim() == 2:
        from torch_geometric import EdgeIndex

        return EdgeIndex(good, sparse_size=(8, 8))
    return good


def native(random: Random, folder: Path) -> None:
    """Models that run the kernels, with tensors in every guise, forward and backward."""
    import torch

    from sheafdeq.errors import SheafDEQError
    from sheafdeq.registry import Shape, build_model

    generator = torch.Generator().manual_seed(random.randrange(2**31))
    n, e = random.choice([0, 1, 6, 40]), random.choice([0, 1, 30])
    e = e if n else 0
    edge_dim = random.choice([None, 2])
    name = random.choice(
        [
            "sheafdeq",
            "strong-sheaf",
            "sheaf-cascade",
            "graph-attn-deq",
            "strong-attention",
            "sheaf-relay",
        ]
    )
    shape = Shape(3, 2, edge_dim, random.choice([1, 2, 3, 5]), random.choice([1, 4, 16]), 3)
    model = build_model(
        name, shape, **({"levels": 2, "level_steps": 2} if name == "sheaf-cascade" else {})
    )
    x = torch.randn(n, 3, generator=generator)
    edge_index = torch.randint(0, max(n, 1), (2, e), generator=generator)
    edge_attr = torch.rand(e, 2, generator=generator) if edge_dim else None
    batch = torch.arange(n) * 2 // max(n, 1) if random.random() < 0.3 else None
    parts = [x, edge_index, edge_attr, batch]
    for _ in range(random.randrange(3)):
        place = random.randrange(4)
        if parts[place] is not None:
            part = parts[place]
            simple = (
                type(part) is torch.Tensor and part.layout is torch.strided and not part.is_meta
            )
            parts[place] = _tensor(random, part) if simple else part
    output = model(*parts)
    if output.shape != (n, 2):
        raise AssertionError(f"{name}: output of shape {tuple(output.shape)} for {n} nodes")
    if n and bool(torch.isfinite(output).all()):
        with contextlib.suppress(SheafDEQError):
            output.sum().backward()


def layouts(random: Random, folder: Path) -> None:
    """Indices and tables handed to the kernels directly."""
    import torch

    from sheafdeq.ops import EdgeLayout, Layers, Tables, sheaf_propagate

    generator = torch.Generator().manual_seed(random.randrange(2**31))
    n, e, d, q, h = (
        random.choice([1, 5, 20]),
        random.choice([0, 3, 40]),
        random.choice([1, 2, 3]),
        random.choice([1, 4]),
        4,
    )
    target = torch.sort(torch.randint(0, n, (e,), generator=generator)).values
    pointer = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.bincount(target, minlength=n).cumsum(0)]
    )
    parts = [
        torch.randint(0, n, (e,), generator=generator),
        pointer,
        torch.rand(e, generator=generator),
        torch.ones(n),
    ]
    for _ in range(random.randrange(2)):
        place = random.randrange(4)
        part = parts[place]
        parts[place] = random.choice(
            [part[:-1], part + 1, part * -1, part.double(), part * 10**12, part.flip(0), part[None]]
        )
    sources = random.choice([n] * 9 + [0, n + 3, -1, 2**40])
    edges = EdgeLayout.build(parts[0], parts[1], parts[2], parts[3], sources)
    rows = max(0, min(sources, 100))

    def draw(*shape: int) -> Any:
        tensor = torch.randn(*shape, generator=generator)
        return (
            tensor
            if random.random() < 0.95
            else random.choice([tensor[..., :-1], tensor.double(), tensor.T, tensor[:0]])
        )

    second = Layers(
        source_weight=draw(d * d, h),
        source_bias=draw(d * d),
        target_weight=draw(d * d, h),
        target_bias=draw(d * d),
    )
    tables = Tables(
        draw(rows, 2 * h),
        draw(n, 2 * h),
        random.choice([None, draw(e, 2 * h)]),
        draw(rows, d * q),
        draw(n, d * q),
    )
    sheaf_propagate(tables, second, edges, d, q)


TARGETS: dict[str, Target] = {
    "npz": npz,
    "csv": csv,
    "pickle": pickles,
    "cache": cache,
    "record": records,
    "figure": figures,
    "checkpoint": checkpoints,
    "configuration": configurations,
    "options": options,
    "command": commands,
    "native": native,
    "layout": layouts,
}
"""Every door by name."""
PREPARED_TARGETS = {"record", "figure", "checkpoint", "command"}
"""Those that damage what :func:`prepare` made."""


# ---------------------------------------------------------------------- doors that must be found
# open


def _unpickles(random: Random, folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return eval, ("1 + 1",)

    pickle.loads(pickle.dumps(Evil()))


def _trusts_sizes(random: Random, folder: Path) -> None:
    bytearray(b"\1") * (8 * 2**30)


def _crashes(random: Random, folder: Path) -> None:
    import faulthandler

    faulthandler._sigsegv()  # type: ignore[attr-defined]


def _writes_outside(random: Random, folder: Path) -> None:
    with contextlib.suppress(Exception):
        (folder.parent / "outside").write_text("here")


def _unnamed(random: Random, folder: Path) -> None:
    if random.random() < 0.5:
        raise KeyError("seed")


def _hangs(random: Random, folder: Path) -> None:
    while True:
        pass


BROKEN: dict[str, Target] = {
    "broken-unpickles": _unpickles,
    "broken-sizes": _trusts_sizes,
    "broken-crashes": _crashes,
    "broken-writes": _writes_outside,
    "broken-unnamed": _unnamed,
    "broken-hangs": _hangs,
}
"""Deliberately broken loaders, each with one fault the fuzzer must find; never part of a campaign
of its own."""
