"""Text of strangers, made safe to print: names in records and files may hold anything."""

from __future__ import annotations

import re

__all__ = ["csv_text", "markdown_text", "mathtext", "printable"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?")


def printable(text: str) -> str:
    """Control, format and surrogate characters escaped: no escape sequence reaches a terminal, no
    line is broken."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def markdown_text(text: str) -> str:
    r"""Without tables, emphasis, code, HTML, links and images: ``|``, ``*``, `````, ``<``, ``](``
    and addresses are escaped.

    Brackets alone are left: ranges are written with them.
    """
    text = printable(text).replace("\\", "\\\\")
    for character in "|*`":
        text = text.replace(character, "\\" + character)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("://", ":&#47;/")
    return re.sub(r"\](?=[(\[:])", r"\\]", text)


def csv_text(text: str) -> str:
    """A cell no spreadsheet takes for a formula: an apostrophe before ``=``, ``+``, ``-``, ``@``
    unless it is a number."""
    text = printable(text)
    return (
        f"'{text}" if text.lstrip()[:1] in tuple("=+-@") and not _NUMBER.fullmatch(text) else text
    )


def mathtext(text: str) -> str:
    r"""Text that matplotlib draws as it stands: ``$`` begins no formula."""
    return printable(text).replace("$", r"\$")
