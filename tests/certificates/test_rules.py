"""The rules of the package: one file a model, each with the statements it rests on."""

import re
from pathlib import Path

import pytest

from sheafdeq.certificates import rule, rule_for, rules
from sheafdeq.certificates.examine import examine
from sheafdeq.certificates.rule import registered_rule
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.registry import MODELS

THEORY = Path(__file__).parents[2] / "docs" / "theory.md"
RULED = sorted(
    {spec.build.constructor for spec in MODELS.values() if registered_rule(spec.build.constructor)},
    key=lambda kind: kind.__name__,
)


def test_every_rule_is_that_of_a_model():
    assert {rule_for(kind).__name__ for kind in RULED} == set(rules.__all__)


@pytest.mark.parametrize("kind", RULED, ids=lambda kind: kind.__name__)
def test_a_rule_stands_in_a_file_of_its_own_and_names_its_proof(kind):
    found = registered_rule(kind)
    assert found is not None
    assert found.prove.__module__ == f"sheafdeq.certificates.rules.{found.prove.__name__}"
    text = THEORY.read_text()
    statements = re.findall(r"(Theorem|Proposition|Corollary)s? (\d+)(?: and (\d+))?", found.proof)
    assert statements
    for word, *numbers in statements:
        for number in filter(None, numbers):
            assert f"**{word} {number}" in text, f"{found.proof}: {word} {number} is not stated"


def test_a_rule_of_a_user():
    class Mine(EquilibriumModel):
        pass

    assert rule_for(Mine) is examine

    @rule(Mine, proof="a paper of mine")
    def prove(problem):
        raise NotImplementedError

    assert rule_for(Mine) is prove
    assert registered_rule(Mine).proof == "a paper of mine"
    assert rule_for(type("Child", (Mine,), {})) is prove
