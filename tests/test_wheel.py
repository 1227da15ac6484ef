"""One wheel, built and installed as a user gets it: in a fresh environment, the kernel in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SMOKE = """
import json, sys
import torch
import sheafdeq
from sheafdeq.data.community import community_graph
from sheafdeq.ops.native_module import native_description, use_kernel
from sheafdeq.models import SheafDEQ
graph, _ = community_graph(42, level=7, nodes=198)
torch.manual_seed(0)
model = SheafDEQ(graph.x.shape[1], 3)
context = model.prepare(graph)
state = model.initial_state(context)
ours = model.step(state, context)
with use_kernel("reference"):
    theirs = model.step(state, context)
difference = float((ours - theirs).norm() / theirs.norm())
print(json.dumps([sheafdeq.__file__, native_description(), difference]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_wheel_brings_the_kernel_into_a_fresh_environment(tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    source = tmp_path / "source"  # without what was built here
    ignored = shutil.ignore_patterns("build", ".venv", ".git", "results", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, ignore=ignored)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", "wheels", str(source))
    (wheel,) = (tmp_path / "wheels").glob("sheafdeq-*.whl")
    assert wheel.name.split("-")[-1].startswith(sysconfig.get_platform().split("-")[0])
    venv.create(tmp_path / "fresh", with_pip=False)
    python = str(tmp_path / "fresh" / "bin" / "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "-q", str(wheel))
    # PyTorch and the others are those of this environment, found after the wheel
    (packages,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where, kernel, difference = json.loads(run(python, "-c", SMOKE).splitlines()[-1])
    assert Path(where).is_relative_to(packages)
    assert kernel["available"]
    assert difference < 1e-5
    version = run(python, "-m", "sheafdeq", "doctor", "--json")
    assert json.loads(version)["kernel"]["available"]
