"""Runs are named by the code behind them, a user's own modules included."""

from __future__ import annotations

import sys
from pathlib import Path

from sheafdeq.identity import SCHEME
from sheafdeq.records import read_records
from sheafdeq.training.run import train
from sheafdeq.training.run_identity import identify
from sheafdeq.user_models import VARIABLE

RESULTS = Path(__file__).parents[2] / "results" / "runs"

USER_MODEL = """
from sheafdeq import SheafDEQ
from {helper} import scale

class Mine(SheafDEQ):
    def step(self, state, context):
        return scale(super().step(state, context))

    def initial_state(self, context):
        return 1.5 + context.drive
"""


def test_a_users_own_modules_name_the_run(small, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(USER_MODEL.format(helper="my_helper"))
    helper = tmp_path / "my_helper.py"
    helper.write_text("def scale(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SHEAFDEQ_CODE_VERSION", raising=False)
    try:
        monkeypatch.setenv(VARIABLE, "my_model:Mine")
        config = small(model="my_model:Mine")
        first = identify(config)
        assert identify(config) == first
        helper.write_text("def scale(x):\n    '''As it is.'''\n    return x\n")
        assert identify(config).id == first.id
        helper.write_text("def scale(x):\n    return 2 * x\n")
        edited = identify(config)
        assert edited.id != first.id
        differing = {
            role for role in first.code_roles if first.code_roles[role] != edited.code_roles[role]
        }
        assert differing == {"model"}
        (tmp_path / "my_model.py").write_text(
            USER_MODEL.format(helper="my_helper").replace("1.5", "1.6")
        )
        assert identify(config).id not in (first.id, edited.id)
    finally:
        for name in ("my_model", "my_helper"):
            sys.modules.pop(name, None)


def test_records_say_how_they_were_named(small, tmp_path):
    record = train(small(max_epochs=1), out=tmp_path).record
    assert record.scheme == SCHEME
    assert {
        "role:model",
        "role:solver",
        "role:adjoint",
        "role:data",
        "role:training",
        "role:kernel",
    } <= set(record.code)
    older = read_records(RESULTS)
    assert older
    assert {record.scheme for record in older} <= {"modules", SCHEME}


def test_what_a_builder_fixes_is_part_of_the_name(small):
    """SheafDEQ with and without pre-norm are one class, built with another constant."""
    with_norm, without = (identify(small(model=name)) for name in ("sheafdeq", "sheafdeq-no-norm"))
    assert with_norm.code_roles["model"] != without.code_roles["model"]
