"""Small files, large claims: sizes are bounded by what a file holds, before anything is
allocated."""

import io
import os
import subprocess
import sys
import textwrap
import time
import zipfile

import numpy as np
import pytest

from sheafdeq.data import task_from_csv, task_from_npz
from sheafdeq.data.archives import read_npz
from sheafdeq.data.pickles import read_pickle
from sheafdeq.errors import DataError, InputError


def graph_arrays(n=20, **changes):
    random = np.random.default_rng(0)
    arrays = {
        "x": random.random((n, 2), dtype=np.float32),
        "edge_index": random.integers(0, n, (2, 3 * n)),
        "y": np.arange(n) % 3,
    }
    return {**arrays, **changes}


def npz(**arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def member(descr="<f4", shape=(3,), body=b"\0" * 12, text=None):
    header = text or f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    return (
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1") + body
    )


def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(f"{name}.npy", content)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i1", "u2", ">i8", "?", "u8"])
def test_reads_what_numpy_writes(dtype):
    array = np.asfortranarray((np.arange(12) % 2).reshape(3, 4).astype(dtype))
    found = read_npz(npz(a=array, b=np.float64(3.0)), "x", ("a", "b", "c"))
    assert sorted(found) == ["a", "b"]
    assert np.array_equal(found["a"], array)
    assert found["a"].dtype == array.dtype.newbyteorder("=")
    assert found["b"] == 3.0


@pytest.mark.parametrize(
    "content",
    [
        member(shape=(10**12,)),
        member(shape=(2**62, 2**62)),
        member(descr="|O"),
        member(descr="<f3"),
        member(descr="<b4"),
        member(text="__import__('os').system('true')"),
        member(text="(" * 4000),
        member(text="{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }"),
        member()[:9],
        b"",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    ],
)
def test_members_that_are_not_plain_arrays(content):
    with pytest.raises(DataError):
        read_npz(archive(x=content), "the file", ("x",))


def test_only_wanted_members_are_unpacked_and_their_size_is_bounded():
    bomb = archive(x=member(), unused=b"\0" * 80_000_000)
    assert len(bomb) < 100_000
    assert list(read_npz(bomb, "the file", ("x",))) == ["x"]
    with pytest.raises(DataError, match="unpack to 80,000,000"):
        read_npz(bomb, "the file", ("unused",))
    with pytest.raises(DataError, match="no array 'y'; it has 'x'"):
        read_npz(archive(x=member()), "the file", ("y",), required=True)


def test_flipped_bytes_in_an_archive_are_named():
    content, random = npz(**graph_arrays()), np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(content)
        for position in random.integers(0, len(damaged), 3):
            damaged[position] ^= int(random.integers(1, 256))
        try:
            read_npz(bytes(damaged), "the file", ("x", "edge_index", "y"))
        except DataError as error:
            assert "the file" in str(error)  # noqa: PT017 - undamaged parts may still be read


def test_labels_bound_the_number_of_classes(tmp_path):
    labels = np.arange(20) % 3
    labels[4] = 10**8
    path = tmp_path / "a.npz"
    path.write_bytes(npz(**graph_arrays(y=labels)))
    with pytest.raises(InputError, match="class 100000000, but only 4 classes occur"):
        task_from_npz(path, seed=0)
    labels[4] = 700  # gaps are allowed up to a thousand
    path.write_bytes(npz(**graph_arrays(y=labels)))
    assert task_from_npz(path, seed=0).out_channels == 701


@pytest.mark.parametrize(
    "changes",
    [
        {"y": np.full(20, 1e300)},
        {"y": np.zeros((20, 2, 2))},
        {"y": np.zeros((20, 0))},
        {"x": np.full((20, 2), 1e300)},
        {"edge_index": np.full((2, 4), 2**63, dtype=np.uint64)},
        {"edge_index": np.zeros((2, 4), dtype=bool)},
        {"train_mask": np.ones((20, 2, 2), dtype=bool)},
        {"x": np.float64(1.0)},
        {"y": np.float64(1.0)},
    ],
)
def test_odd_arrays_are_named(tmp_path, changes):
    path = tmp_path / "a.npz"
    path.write_bytes(npz(**graph_arrays(**changes)))
    with pytest.raises((InputError, DataError)):
        task_from_npz(path, seed=0)


def test_devices_pipes_and_folders_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (
        tmp_path / "pipe",
        tmp_path,
        tmp_path / "absent",
        "/dev/zero",
        tmp_path / ("n" * 300),
        "a\0b",
    ):
        with pytest.raises(DataError, match="cannot be read"):
            task_from_npz(path)


def test_a_wide_header_costs_linear_time(tmp_path):
    columns = [f"c{number}" for number in range(100_000)]
    (tmp_path / "n.csv").write_text(",".join(["node", "label", *columns, "c7", "c7"]) + "\n")
    (tmp_path / "e.csv").write_text("source,target\n")
    begun = time.perf_counter()
    with pytest.raises(DataError, match=r"differ, look at 'c7'$"):
        task_from_csv(tmp_path / "n.csv", tmp_path / "e.csv")
    assert time.perf_counter() - begun < 5  # the quadratic check took 33 s for 20,000 columns


def test_a_class_of_five_thousand_digits_is_a_word(tmp_path):
    rows = "".join(f"{i},{i},{'9' * 5000 if i == 3 else i % 2}\n" for i in range(20))
    (tmp_path / "n.csv").write_text("node,a,label\n" + rows)
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    assert task_from_csv(tmp_path / "n.csv", tmp_path / "e.csv", seed=0).out_channels == 3


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02)" + b"\x85" * 200_000 + b".",  # a tuple in a tuple in a tuple ...
        b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b".",  # 2^60 leaves
        # as a key: hashing it would take for ever
        b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
        b"\x80\x02})\x85K\x01s.",  # even a small tuple is no key
        b"\x80\x02cnumpy\ndtype\n)" + b"q\x00h\x00\x86" * 60 + b"R.",
    ],
)
def test_nested_tuples_are_bounded(content):
    begun = time.perf_counter()
    with pytest.raises(DataError, match="refused"):
        read_pickle(content)
    assert time.perf_counter() - begun < 2


LIMITED = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    import torch
    from sheafdeq.data import task_from_npz
    from sheafdeq.errors import RecordError, SheafDEQError
    from sheafdeq.records import read_sealed, write_sealed
    from sheafdeq.registry import COMMUNITY, MODELS, build_model
    from sheafdeq.training.checkpoint import load_model, save_checkpoint

    folder = Path(sys.argv[1])
    for name in MODELS:
        model = build_model(name, COMMUNITY)
        save_checkpoint(folder, model.state_dict(), name, MODELS[name].options, COMMUNITY)
        assert load_model(folder).num_parameters() == model.num_parameters()
        facts = read_sealed(folder / "checkpoint.json")
        resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, resource.RLIM_INFINITY))
        for change in ("in_channels", "channels", "stalk_dim", "out_channels", "steps"):
            shape = {**facts["shape"], change: 10**9}
            write_sealed(folder / "checkpoint.json", {**facts, "shape": shape})
            try:
                load_model(folder)
            except RecordError as error:
                assert "MemoryError" not in str(error), error
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, resource.RLIM_INFINITY))
    try:
        task_from_npz(folder / "label.npz", seed=0).describe()
    except SheafDEQError:
        print("done")
"""


def test_huge_claims_within_small_memory(tmp_path):
    labels = np.zeros(20, dtype=np.int64)
    labels[3] = 10**8
    (tmp_path / "label.npz").write_bytes(npz(**graph_arrays(y=labels)))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "done\n"
