"""The document numbers its statements 1, 2, 3, ... without gap, and a test cites each of them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATEMENT = re.compile(r"^\*\*(Definition|Lemma|Theorem|Corollary|Proposition) (\d+)", re.MULTILINE)


def statements() -> dict[int, str]:
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    return {int(number): kind for kind, number in STATEMENT.findall(text)}


def test_numbers_are_consecutive():
    assert sorted(statements()) == list(range(1, len(statements()) + 1))


def cited(text: str) -> set[tuple[str, int]]:
    """'Lemmas 3, 4 and 5', 'Theorems 27 to 29', 'Corollary 19', 'lemma_12_...' -> {(kind, number),
    ...}."""
    found = set()
    pattern = (
        r"(definition|lemma|theorem|corollar|proposition)(?:s|y|ies|ys)?"
        r"[ _](\d+(?:(?:, | and |, and | to |_and_|; )\d+)*)"
    )
    for kind, numbers in re.findall(pattern, text.lower()):
        name = "corollary" if kind == "corollar" else kind
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= {(name, number) for number in range(int(first), int(last or first) + 1)}
    return found


def test_every_statement_is_cited_by_a_test():
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("theory", "predictions")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
    )
    citations = cited(text)
    missing = [
        f"{kind} {number}"
        for number, kind in statements().items()
        if (kind.lower(), number) not in citations
    ]
    assert not missing


def test_code_cites_statements_that_exist():
    known = {(kind.lower(), number) for number, kind in statements().items()}
    for path in (ROOT / "src" / "sheafdeq" / "theory").glob("*.py"):
        # the paper's own numbers
        own = re.sub(r"(Theorem|Corollary|Proposition) 3\.\d", "", path.read_text(encoding="utf-8"))
        assert cited(own) <= known, path.name
