"""The ten lines at the top of the README do what their remarks say."""

import re
from pathlib import Path

from sheafdeq import Status

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_ten_lines_are_seeded_and_converge(capsys):
    code = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)[0]
    ends = []
    for _ in range(2):
        names = {}
        exec(compile(code, str(README), "exec"), names)
        ends.append(names)
    first, second = ends
    assert first["solution"].status is Status.CONVERGED
    assert bool((first["outputs"] == second["outputs"]).all())
    assert "converged after 200 steps" in capsys.readouterr().out
