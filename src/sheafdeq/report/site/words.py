"""Records in words: numbers, durations, solver statuses, certificates, and the configuration file
that repeats a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sheafdeq.records import RunRecord

__all__ = [
    "certificate_sentences",
    "clip",
    "duration",
    "number",
    "option_text",
    "run_sentences",
    "shown",
    "toml_of",
]

LONGEST = 400
"""Characters of one text from a record that a page shows."""


def clip(text: Any, longest: int = LONGEST) -> str:
    """Text of bounded length; what was cut is said."""
    plain = str(text)
    return plain if len(plain) <= longest else f"{plain[:longest]}… ({len(plain):,} characters)"


def number(value: Any, form: str = ".4g") -> str:
    """A number for people; an en dash for nothing; other text as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else clip(value)
    return format(value, form) if math.isfinite(value) else str(value)


def duration(seconds: Any) -> str:
    """Seconds, minutes or hours."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not math.isfinite(seconds)
    ):
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def shown(value: Any) -> str:
    """Any JSON value in one line."""
    if isinstance(value, Mapping):
        return clip(", ".join(f"{key} {shown(entry)}" for key, entry in value.items()))
    if isinstance(value, list | tuple):
        return clip("; ".join(shown(entry) for entry in value))
    return number(value, ".6g") if not isinstance(value, bool) else ("yes" if value else "no")


def option_text(options: Mapping[str, Any]) -> str:
    """``shift 1.3, norm_order 2``."""
    return clip(", ".join(f"{key} {value}" for key, value in options.items()))


def run_sentences(record: RunRecord, diagnostics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The run in a few sentences: how good, did it settle, do its starts agree."""
    sentences = [
        f"Test {record.task.score} {number(record.scores.get('test'))}, validation "
        f"{number(record.best.validation)}."
    ]
    solves = record.solves
    if solves is None:
        sentences.append("A feed-forward network: there is nothing to settle.")
    elif set(solves.final) == {"converged"}:
        sentences.append(
            "Every solve of the final evaluation converged: its residual was "
            "measured within tolerance."
        )
    else:
        total, settled = sum(solves.final.values()), solves.final.get("converged", 0)
        sentences.append(
            f"Read out after {solves.steps} steps with {settled} of {total} graphs at rest "
            f"(largest residual {number(solves.residual, '.3g')})"
            + (
                ", although its solver promises convergence."
                if solves.to_tolerance
                else ", as it was trained to be."
            )
        )
    for payload in diagnostics:
        continued = payload.get("continued") or {}
        agreement = continued.get("agreement") or {}
        groups, starts = agreement.get("groups") or [], agreement.get("starts") or []
        label = payload.get("label")
        what = "Continued iteration" + (f" ({clip(label)})" if label else "")
        if len(starts) > 1:
            ends = "one state" if len(groups) == 1 else f"{len(groups)} different states"
            sentences.append(
                f"{what}: {len(starts)} starts end in {ends} after "
                f"{continued.get('iterations')} iterations."
            )
    return sentences


def certificate_sentences(certificate: Mapping[str, Any]) -> list[str]:
    """What is proved, in which metric, for which starts; or that nothing is."""
    verdict, rate = certificate.get("verdict"), certificate.get("rate")
    if verdict == "certified":
        words = [
            f"Proved: one step shrinks distances at least by the factor {number(rate, '.6g')}, "
            "measured in "
            f"{clip(certificate.get('metric'))}.",
            f"Where: {clip(certificate.get('domain'))}.",
        ]
        if certificate.get("level") == "ball":
            words.append(
                f"Starts within Thompson distance {number(certificate.get('radius'), '.3g')} of "
                "the reached state are led to the one "
                "equilibrium there. Nothing is said of others."
            )
        else:
            words.append(
                "So there is exactly one equilibrium, and iteration reaches it from "
                "every such start."
            )
        words.append(
            "Nodes may compute with old messages of any bounded age."
            if certificate.get("delays")
            else "This metric says nothing about old messages: asynchronous runs are not covered."
        )
    elif verdict == "refuted":
        witness = certificate.get("witness") or {}
        kind = (
            "Proved" if witness.get("proved") else ("Found numerically, without an existence proof")
        )
        words = [
            f"{kind}: two different equilibria, at Thompson distance "
            f"{number(witness.get('distance'))} of each other.",
            "Which one is reached depends on the start.",
        ]
    elif verdict == "two candidates":
        words = [
            "Two different states with residuals at the limit of rounding were found. That two "
            "equilibria exist is not proved."
        ]
    else:
        words = [
            "Nothing is proved, and no second equilibrium was found. This says nothing about "
            "the model either way."
        ]
    if certificate.get("grounds"):
        words.append(f"Grounds: {clip(certificate['grounds'])}.")
    return words


# ---------------------------------------------------------------------- the configuration, to run
# again


def toml_of(config: Mapping[str, Any]) -> str:
    """A TOML file that ``sheafdeq train --config`` reads back to the same configuration (absent
    values are left out)."""
    lines: list[str] = []
    _table(lines, config, ())
    return "\n".join(lines) + "\n"


def _table(lines: list[str], values: Mapping[str, Any], path: tuple[str, ...]) -> None:
    nested = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    if path:
        lines += ["", f"[{'.'.join(_key(part) for part in path)}]"]
    lines.extend(
        f"{_key(key)} = {_value(value)}"
        for key, value in values.items()
        if key not in nested and value is not None
    )
    for key, value in nested.items():
        _table(lines, value, (*path, key))


def _key(key: str) -> str:
    bare = key and all(
        character.isascii() and (character.isalnum() or character in "-_") for character in key
    )
    return key if bare else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if value != value else ("inf" if value > 0 else "-inf")
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(entry) for entry in value if entry is not None)}]"
    if isinstance(value, str):
        # JSON text is TOML text, except that DEL must be escaped and half a surrogate pair has no
        # place in either
        text = value.encode("utf-8", "replace").decode("utf-8")
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
