"""Doors for data: archives, tables, pickles, caches."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from pathlib import Path
from random import Random
from typing import Any

from sheafdeq.fuzzing.hostile import WORDS, damaged_bytes

__all__ = ["cache", "csv", "npz", "pickles"]


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
