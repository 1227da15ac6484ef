"""What is released: one version everywhere, notes from the changelog, and archives that install
without a compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from scripts import ROOT, loaded

SMOKE = """
import warnings
warnings.simplefilter("ignore")
import torch
from torch_geometric.data import Data
import sheafdeq
from sheafdeq.ops import native_available

assert not native_available(), "a wheel without a compiler has no kernel"
assert "site-packages" in sheafdeq.__file__, sheafdeq.__file__
torch.manual_seed(0)
edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
data = Data(x=torch.randn(4, 2), edge_index=edges)
model = sheafdeq.load("community-7/sheaf-cascade")
outputs, solution = model(data, return_info=True)
assert outputs.shape == (4, 3) and solution.converged, solution
assert sheafdeq.certify(model, data, effort="quick").verdict.value == "certified"
small = sheafdeq.SheafDEQ(2, 3, gradient="implicit")
small(data, steps=200).sum().backward()
assert all(p.grad is not None for p in small.parameters())
print("smoke", sheafdeq.__version__)
"""


def script(name: str) -> ModuleType:
    return loaded(f"benchmarks/{name}.py")


def project_version() -> str:
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_one_version_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {project_version()}\n" in citation
    assert re.fullmatch(r"\d+\.\d+\.\d+", project_version())


def test_notes_are_the_section_of_the_changelog(capsys: pytest.CaptureFixture[str]) -> None:
    notes = script("release_notes")
    text = "# Changelog\n\n## [Unreleased]\n\n### Added\n- b\n\n## [0.1.0] - 2026-01-01\n- a\n"
    assert notes.notes(text, "Unreleased") == "### Added\n- b"
    assert notes.notes(text, "0.1.0") == "- a"
    with pytest.raises(SystemExit, match=r"Unreleased, 0\.1\.0"):
        notes.notes(text, "0.3.0")
    with pytest.raises(SystemExit, match="empty"):
        notes.notes("## [1.0.0]\n\n", "1.0.0")
    own = notes.sections(notes.CHANGELOG.read_text(encoding="utf-8"))
    assert any(body for body in own.values())


def run(*words: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=540,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return str(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_archives_install_and_work_without_a_compiler(tmp_path: Path) -> None:
    """`python -m pytest tests/release -m slow`: sdist, a wheel of it with compilers that fail, a
    fresh environment that takes the wheel and its dependencies, and a smoke test there."""
    pytest.importorskip("build", reason="pip install build to make archives")
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone)
    without = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false", "PYTHONPATH": ""}
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, clone, env=without)
    (sdist,) = tmp_path.glob("sheafdeq-*.tar.gz")
    assert sdist.stat().st_size < 20 * 2**20
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("zoo/community-7/sheaf-cascade/model.safetensors") for name in names)
    assert not any("/results/" in name for name in names)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, sdist, env=without)
    (wheel,) = tmp_path.glob("sheafdeq-*.whl")
    assert project_version() in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    assert not any("_native" in name and name.endswith((".so", ".pyd")) for name in inside)
    for part in ("zoo/sums/sheaf-relay/README.md", "py.typed", "training/recipes/cascade.toml"):
        assert f"sheafdeq/{part}" in inside
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, "torch", env=without)
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel, env=without)
    assert "smoke" in run(python, "-c", SMOKE, cwd=tmp_path, env=without)
    assert "PyTorch" in run(tmp_path / "env" / "bin" / "sheafdeq", "doctor", cwd=tmp_path)
    assert "community-7/sheaf-cascade" in run(
        tmp_path / "env" / "bin" / "sheafdeq", "zoo", cwd=tmp_path
    )
