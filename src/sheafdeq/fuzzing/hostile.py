"""Hostile values: numbers, words, nesting, and damage done to good ones."""

from __future__ import annotations

import json
from random import Random
from typing import Any

__all__ = ["NUMBERS", "WORDS", "damaged_bytes", "damaged_json", "hostile", "nested"]


NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    0.5,
    -0.0,
    1e-320,
    1e308,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    10**9,
    10**30,
]

WORDS = [
    "",
    "abc",
    "../..",
    "/etc/passwd",
    "\x1b[2J",
    "=1+1",
    r"$\frac{$",
    "a\nb",
    "\ud800",
    "true",
    "null",
    "NaN",
    "1e999",
    "-1",
    "9" * 5000,
    "__class__",
    "sheafdeq",
    "community",
    "\u202e",
    "<b>",
    "x" * 3000,
    "\0",
]


def nested(depth: int, kind: type = list) -> Any:
    """A list in a list in a list, or a dictionary in a dictionary."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def hostile(random: Random) -> Any:
    """One JSON value that nobody expects."""
    choice = random.randrange(8)
    if choice < 3:
        return random.choice(NUMBERS)
    if choice < 5:
        return random.choice(WORDS[:-1])
    return random.choice(
        [
            None,
            True,
            False,
            [],
            {},
            [1, "a", None],
            {"a": {}},
            nested(30),
            nested(400),
            [0] * 500,
            {"": ""},
        ]
    )


def damaged_json(random: Random, value: Any, changes: int = 2) -> Any:
    """A copy with some values replaced, some keys removed and some added."""
    value = json.loads(json.dumps(value))
    for _ in range(random.randrange(changes + 1)):
        holder: Any = value
        for _ in range(random.randrange(1, 6)):
            keys = (
                list(holder)
                if isinstance(holder, dict)
                else list(range(len(holder)))
                if isinstance(holder, list)
                else []
            )
            if not keys:
                break
            key = random.choice(keys)
            inner = holder[key]
            if isinstance(inner, dict | list) and inner and random.random() < 0.75:
                holder = inner
                continue
            act = random.randrange(6)
            if act == 0 and isinstance(holder, dict):
                del holder[key]
            elif act == 1 and isinstance(holder, dict):
                holder[random.choice(["extra", "", "__proto__", "seed"])] = hostile(random)
            else:
                holder[key] = hostile(random)
            break
    return value


def damaged_bytes(random: Random, data: bytes) -> bytes:
    """A few flipped, removed, doubled or inserted bytes, or half the file."""
    found = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        act, place = random.randrange(5), random.randrange(len(found) + 1)
        if act == 0:
            del found[place:]
        elif act == 1:
            del found[place : place + random.randrange(1, 9)]
        elif act == 2:
            found[place:place] = found[max(0, place - 40) : place]
        elif act == 3:
            found[place:place] = random.randbytes(random.randrange(1, 9))
        elif found:
            found[place % len(found)] ^= 1 << random.randrange(8)
    return bytes(found)
