"""Pickles are read, never run: good ones give their arrays, bad ones a named error and no side
effect."""

import contextlib
import pickle
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from sheafdeq.data.pickles import read_pickle
from sheafdeq.errors import DataError


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.asfortranarray(np.random.default_rng(0).random((3, 4))),
        np.array([1.5, 2.5], dtype=">f4"),
        np.zeros((0, 3), dtype=np.uint8),
        np.array([True, False]),
    ],
)
def test_arrays_come_back(array):
    found = read_pickle(pickle.dumps(array, 3))
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("=")


def test_sparse_matrices_and_adjacency_come_back():
    matrix = sparse.random(20, 30, density=0.1, format="csr", random_state=0, dtype=np.float32)
    content = pickle.dumps(matrix, 3)
    assert (abs(read_pickle(content) - matrix)).nnz == 0
    graph = defaultdict(list, {0: [1, 2], 1: [0], 2: [0, 0]})
    assert read_pickle(pickle.dumps(graph, 2)) == dict(graph)


class Calls:
    """Pickles to a call of ``function``."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def malicious(marker):
    """Twenty pickles; those that Python's unpickler would follow create the file ``marker``."""
    touch = f"open({str(marker)!r}, 'w').close()"
    text = touch.encode()
    path = str(marker).encode()

    def call(module, name, argument=text):
        return (
            b"c"
            + module
            + b"\n"
            + name
            + b"\n(X"
            + len(argument).to_bytes(4, "little")
            + argument
            + b"tR."
        )

    state = b"(dX\x04\x00\x00\x00dataNs"
    return {
        "exec": call(b"builtins", b"exec"),
        "eval": call(b"builtins", b"eval"),
        "exec of Python 2": call(b"__builtin__", b"exec"),
        "shell": call(b"os", b"system", b"touch " + path),
        "shell under its platform name": call(b"posix", b"system", b"touch " + path),
        "open for writing": b"cbuiltins\nopen\n(X"
        + len(path).to_bytes(4, "little")
        + path
        + b"X\x01\x00\x00\x00wtR.",
        "name from the stack": pickle.dumps(Calls(exec, touch), 4),
        "framed protocol 5": pickle.dumps(Calls(exec, touch), 5),
        "inside a list": pickle.dumps([1, 2, Calls(exec, touch)], 2),
        "inside a dictionary": pickle.dumps({"graph": Calls(exec, touch)}, 2),
        "after a good array": pickle.dumps((np.arange(3), Calls(exec, touch)), 3),
        "old instance opcode": b"(X"
        + len(text).to_bytes(4, "little")
        + text
        + b"ibuiltins\nexec\n.",
        "object opcode": b"(cbuiltins\nexec\nX" + len(text).to_bytes(4, "little") + text + b"o.",
        "new object opcode": b"\x80\x02cbuiltins\nexec\nX"
        + len(text).to_bytes(4, "little")
        + text
        + b"\x85\x81.",
        "partial": pickle.dumps(Calls(__import__("functools").partial, exec, touch), 2),
        "default factory": b"ccollections\ndefaultdict\n(cbuiltins\nexec\ntR.",
        "persistent number": b"Pexec\n.",
        "extension code": b"\x82\x01.",
        "array of objects": pickle.dumps(np.array([Calls(exec, touch)], dtype=object), 3),
        "reconstructing something else": b"cnumpy.core.multiarray\n_reconstruct\n"
        b"(cos\nsystem\n(I0\ntX\x01\x00\x00\x00btR.",
        "filling a name": b"cnumpy\nndarray\n" + state + b"b.",
    }


NAMES = list(malicious("x"))


def test_there_are_at_least_twenty():
    assert len(NAMES) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_malicious_pickles_are_refused_and_nothing_runs(name, tmp_path):
    marker = tmp_path / "marker"
    with pytest.raises(DataError, match=r"refused|truncated or corrupt"):
        read_pickle(malicious(marker)[name])
    assert not marker.exists()


def test_the_malicious_pickles_are_live(tmp_path):
    """The check above would be empty if these pickles did nothing: Python's own unpickler does run
    them."""
    live = 0
    for index, name in enumerate(NAMES):
        marker = tmp_path / f"marker{index}"
        # Some abuse opcodes that current Python refuses by itself, or fail after the damage is
        # done.
        with (
            contextlib.suppress(Exception),
            contextlib.closing(pickle.loads(malicious(marker)[name])),
        ):
            pass
        live += marker.exists()
    assert live >= 10


@settings(max_examples=60)
@given(st.integers(0, 400), st.integers(0, 255))
def test_truncated_or_altered_pickles_never_escape(position, value):
    content = pickle.dumps(sparse.csr_matrix(np.eye(4, dtype=np.float32)), 3)
    altered = bytearray(content)
    altered[position % len(content)] = value
    for candidate in (content[: position % len(content)], bytes(altered)):
        try:
            result = read_pickle(candidate)
        except DataError:
            continue  # refused by name; any other exception fails the test
        assert candidate != content[: position % len(content)], "a truncated file was accepted"
        assert not callable(result)


def test_shapes_that_do_not_fit_are_refused():
    content = pickle.dumps(np.arange(4, dtype=np.int64), 3)
    wrong = content.replace(b"K\x04\x85", b"K\x05\x85")
    assert wrong != content
    with pytest.raises(DataError, match="does not fill the shape"):
        read_pickle(wrong)
    matrix = sparse.csr_matrix(np.eye(3, dtype=np.float32))
    matrix.indices = np.array([0, 1, 7], dtype=np.int32)
    with pytest.raises(DataError, match="corrupt"):
        read_pickle(pickle.dumps(matrix, 3))


def test_not_a_pickle():
    for content in (b"", b"hello", b"\x80\x02", b"."):
        with pytest.raises(DataError):
            read_pickle(content)
