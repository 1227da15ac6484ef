"""The normal form of a statement: what it computes, without what it says to people and type
checkers.

Left out: comments and layout (by parsing), docstrings and other bare constants, import statements
(a name counts by what it means, see ``definitions.py``), annotations of arguments, results and
local variables, and the arguments of the error in ``raise Error(...)``. Annotations stay where they
may act: on class attributes (fields of dataclasses) and on functions with a decorator that might
read them.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["canonical", "free_names", "native_normal_form", "normalise"]

ANNOTATIONS_UNREAD_BY = frozenset(
    {
        "property",
        "staticmethod",
        "classmethod",
        "abstractmethod",
        "override",
        "setter",
        "contextmanager",
        "no_grad",
        "cache",
    }
)
"""Decorators (last part of their name) that do not look at annotations."""

_SKIPPED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})

Rewrite = Callable[[ast.expr], ast.expr | None]


def normalise(statement: ast.stmt, rewrite: Rewrite) -> ast.stmt | None:
    """The statement in normal form (changed in place), or None when nothing of it is left.

    ``rewrite`` is asked about attribute chains and string constants and may put another expression
    in their place.
    """
    result = _Normaliser(rewrite).visit(statement)
    return result if isinstance(result, ast.stmt) else None


class _Normaliser(ast.NodeTransformer):
    def __init__(self, rewrite: Rewrite) -> None:
        self.rewrite = rewrite
        self.in_class = False

    def visit(self, node: ast.AST) -> Any:
        """As the base class, and no block is left empty."""
        result = super().visit(node)
        if (
            isinstance(result, ast.stmt | ast.ExceptHandler | ast.match_case)
            and getattr(result, "body", None) == []
        ):
            result.body = [ast.Pass()]  # type: ignore[union-attr]
        return result

    def visit_FunctionDef(self, node: Any) -> Any:
        """Without annotations, unless a decorator may read them."""
        if all(_last_name(decorator) in ANNOTATIONS_UNREAD_BY for decorator in node.decorator_list):
            node.returns = None
            arguments = node.args
            for argument in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                arguments.vararg,
                arguments.kwarg,
            ):
                if argument is not None:
                    argument.annotation = None
        return self._nested(node, in_class=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Its attributes keep their annotations."""
        return self._nested(node, in_class=True)

    def _nested(self, node: ast.AST, in_class: bool) -> Any:
        outer, self.in_class = self.in_class, in_class
        try:
            return self.generic_visit(node)
        finally:
            self.in_class = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """``x: T = v`` outside classes is ``x = v``."""
        if not self.in_class:
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A constant that stands alone says something to people."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Import(self, node: Any) -> Any:
        """Names count by what they mean."""
        return None

    visit_ImportFrom = visit_Import

    def visit_If(self, node: ast.If) -> Any:
        """Without blocks for type checkers."""
        if _last_name(node.test) == "TYPE_CHECKING":
            kept = [self.visit(child) for child in node.orelse]
            return [child for child in kept if child is not None]
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        """Which error, not what it says."""
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        node.cause = None
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """May be ``module.thing``."""
        replacement = self.rewrite(node)
        return self.generic_visit(node) if replacement is None else replacement

    def visit_Constant(self, node: ast.Constant) -> Any:
        """May be the name of a module."""
        replacement = self.rewrite(node) if isinstance(node.value, str) else None
        return node if replacement is None else replacement


def _last_name(node: ast.expr) -> str | None:
    node = node.func if isinstance(node, ast.Call) else node
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else None
    )


def canonical(node: Any) -> str:
    """A syntax tree as text that is the same in every Python version (absent fields are left
    out)."""
    if isinstance(node, ast.AST):
        fields = (
            (name, getattr(node, name, None))
            for name in node._fields
            if name not in _SKIPPED_FIELDS
        )
        inner = ",".join(
            f"{name}={canonical(value)}" for name, value in fields if value not in (None, [])
        )
        if isinstance(node, ast.Constant):
            inner = f"{type(node.value).__name__}:{node.value!r}"
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{','.join(map(canonical, node))}]"
    return repr(node)


def free_names(statement: ast.stmt) -> set[str]:
    """Names the (normalised) statement looks up in its module when it runs or when what it defines
    is used."""
    text = ast.unparse(ast.fix_missing_locations(ast.Module([statement], [])))
    waiting, found = [symtable.symtable(text, "definition", "exec")], set()
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            # A class body looks names up in its module too, even those it sets itself later.
            outside = (
                symbol.is_global()
                if table.get_type() == "function"
                else symbol.is_referenced() or symbol.is_global()
            )
            if outside:
                found.add(symbol.get_name())
    return found


_NATIVE_TOKENS = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t]*include[ \t]*"[^\n]*',
    re.S | re.M,
)


def native_normal_form(path: Path) -> str:
    """A C++ source without comments, layout and includes of neighbouring files."""

    def kept(match: re.Match[str]) -> str:
        return match.group() if match.group()[0] in "\"'" else " "

    text = _NATIVE_TOKENS.sub(kept, path.read_text(encoding="utf-8"))
    return "\n".join(
        line for line in (" ".join(line.split()) for line in text.splitlines()) if line
    )
