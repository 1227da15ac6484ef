"""Data files: checked by hash, fetched only with consent, cached as plain numbers."""

import gzip
import hashlib
import http.client
import http.server
import pickle
import threading
import zipfile
from functools import partial

import numpy as np
import pytest

from sheafdeq.data import load_task
from sheafdeq.data.cache import cached
from sheafdeq.data.files import KnownFile, data_root, manifest, read_files
from sheafdeq.data.terrain import read_idx
from sheafdeq.errors import DataError


def known(address, content, path="set/raw/a.bin"):
    return {path: KnownFile(path, hashlib.sha256(content).hexdigest(), len(content), address)}


@pytest.fixture
def server(tmp_path):
    """A loopback server for the folder ``served``; yields its address and the folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    ) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", folder
        running.shutdown()
        thread.join()


def test_missing_files_are_named_with_their_remedy(tmp_path):
    with pytest.raises(DataError) as caught:
        load_task("mnist-terrain", root=tmp_path)
    message = str(caught.value)
    assert "4 data file(s)" in message
    assert str(tmp_path / "mnist/raw/train-images-idx3-ubyte.gz") in message
    assert "--download" in message
    assert "SHEAFDEQ_DATA" in message
    assert list(tmp_path.iterdir()) == []  # nothing was fetched or made


def test_download_with_consent(server, tmp_path):
    address, folder = server
    content = b"the right bytes"
    (folder / "a.bin").write_bytes(content)
    files = known(f"{address}/a.bin", content)
    root = tmp_path / "root"
    with pytest.raises(DataError, match="not in the data folder"):
        read_files(list(files), root=root, known=files)
    assert read_files(list(files), root=root, download=True, known=files) == {
        "set/raw/a.bin": content
    }
    (folder / "a.bin").unlink()  # a second time needs no network
    assert read_files(list(files), root=root, known=files) == {"set/raw/a.bin": content}
    assert [path.name for path in (root / "set/raw").iterdir()] == ["a.bin"]


def test_download_from_an_archive(server, tmp_path):
    address, folder = server
    with zipfile.ZipFile(folder / "set.zip", "w") as archive:
        archive.writestr("SET/a.txt", b"1, 2\n")
    path = "tu/SET/raw/a.txt"
    files = known(f"{address}/set.zip#SET/a.txt", b"1, 2\n", path)
    assert read_files([path], root=tmp_path, download=True, known=files)[path] == b"1, 2\n"
    absent = known(f"{address}/set.zip#SET/b.txt", b"x", "tu/SET/raw/b.txt")
    with pytest.raises(DataError, match=r"member SET/b\.txt"):
        read_files(list(absent), root=tmp_path, download=True, known=absent)


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (b"the wrong bytes", "SHA-256"),
        (b"short", "5 bytes instead of 15"),
        (b"far too many bytes", "more than 15"),
    ],
)
def test_wrong_downloads_are_refused_and_not_kept(server, tmp_path, served, message):
    address, folder = server
    (folder / "a.bin").write_bytes(served)
    files = known(f"{address}/a.bin", b"the right bytes")
    with pytest.raises(DataError, match=message):
        read_files(list(files), root=tmp_path / "root", download=True, known=files)
    assert not (tmp_path / "root" / "set/raw/a.bin").exists()


def test_unreachable_addresses_are_named(server, tmp_path):
    address, _ = server
    for bad in (f"{address}/absent.bin", "http://127.0.0.1:9/a", "file:///etc/passwd"):
        files = known(bad, b"x")
        with pytest.raises(DataError, match=r"could not download|not an http address"):
            read_files(list(files), root=tmp_path, download=True, known=files)


@pytest.mark.parametrize("content", [b"", b"corrupt", pickle.dumps(print)])
def test_planted_files_are_refused_by_their_hash(content, tmp_path):
    for path in (p for p in manifest() if p.startswith("planetoid/Cora/")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    with pytest.raises(DataError, match=r"truncated|SHA-256"):
        load_task("cora", root=tmp_path)


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("SHEAFDEQ_DATA", str(tmp_path / "named"))
    assert data_root() == tmp_path / "named"
    assert data_root(tmp_path) == tmp_path
    monkeypatch.delenv("SHEAFDEQ_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "sheafdeq"


def test_manifest_is_complete():
    files = manifest()
    assert len(files) == 144
    assert all(
        len(file.sha256) == 64 and file.size > 0 and file.address.startswith("https://")
        for file in files.values()
    )


# ----------------------------------------------------------------------------------------------
# cache


def test_cache_is_used_and_sealed(tmp_path):
    arrays = {"x": np.arange(6.0).reshape(2, 3), "mask": np.array([True, False])}
    calls = []

    def parse():
        calls.append(1)
        return arrays

    for _ in range(2):
        found = cached(tmp_path, "set", {"raw": "hash"}, parse)
        assert np.array_equal(found["x"], arrays["x"])
        assert found["mask"].dtype == bool
    assert len(calls) == 1
    cached(tmp_path, "set", {"raw": "other hash"}, parse)
    assert len(calls) == 2  # other raw files, other cache
    for path in (tmp_path / "parsed").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match="does not match its SHA-256"):
        cached(tmp_path, "set", {"raw": "hash"}, parse)


def test_a_planted_cache_cannot_run(tmp_path):
    cached(tmp_path, "set", {}, lambda: {"x": np.zeros(1)})
    (path,) = (tmp_path / "parsed").glob("*.safetensors")

    class Bomb:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'marker')!r}, 'w').close()",)

    content = pickle.dumps(Bomb())
    path.write_bytes(content)
    path.with_suffix(".sha256").write_text(hashlib.sha256(content).hexdigest())
    with pytest.raises(DataError, match="not a safetensors file"):
        cached(tmp_path, "set", {}, lambda: {})
    assert not (tmp_path / "marker").exists()


def test_an_unwritable_cache_is_done_without(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert cached(blocked, "set", {}, lambda: {"x": np.ones(2)})["x"].sum() == 2


def test_idx_files_that_do_not_hold_what_they_promise():
    header = b"\x00\x00\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big")
    assert read_idx(gzip.compress(header + bytes(range(6)))).tolist() == [[0, 1, 2], [3, 4, 5]]
    good = gzip.compress(header + bytes(6))
    for bad in (
        good[:-9],
        b"plain",
        gzip.compress(b"\x00\x00\x0d\x01"),
        gzip.compress(header + bytes(5)),
        gzip.compress(b""),
    ):
        with pytest.raises(DataError, match=r"gzip|IDX|promises"):
            read_idx(bad)


@pytest.mark.parametrize(
    "error",
    [
        http.client.IncompleteRead(b"half"),
        http.client.BadStatusLine("nonsense"),
        http.client.LineTooLong("header"),
        http.client.InvalidURL("control characters"),
        TimeoutError("timed out"),
        ConnectionResetError(104, "Connection reset by peer"),
        ValueError("unknown url type"),
    ],
)
def test_protocol_errors_of_a_download_are_named(monkeypatch, tmp_path, error):
    import urllib.request

    from sheafdeq.data.files import manifest, read_files

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    path = next(iter(manifest()))
    with pytest.raises(DataError, match="could not download"):
        read_files([path], root=tmp_path, download=True)
    assert list(tmp_path.iterdir()) == []
