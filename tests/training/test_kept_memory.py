"""A process that keeps what it frees asks the system for it once."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
import torch
from sheafdeq.training.kept_memory import keep_freed_memory
able = keep_freed_memory() if sys.argv[1] == "keep" else None
for _ in range(15):
    torch.ones(10_000_000).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(10_000_000).sum()
print(json.dumps([able, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]))
"""


def _faults(what: str) -> list[int]:
    command = [sys.executable, "-c", SCRIPT, what]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_kept_memory_is_not_asked_for_again():
    able, kept = _faults("keep")
    if not able:
        pytest.skip("this C library has no mallopt")
    _, returned = _faults("return")
    # 40 MB five times over are about 49,000 pages of 4 kB, or 100 of 2 MB; a block that does not
    # fit into what is kept may be asked for once more
    assert 4 * kept < returned
