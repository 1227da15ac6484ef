"""The command line. Every module in this folder that defines ``configure`` is one command.

Its ``HELP`` is its line in the list of commands, and the docstring of ``configure`` is what its own
``--help`` begins with.

Exit codes: 0 the work was done; 1 it failed (did not converge, a file was corrupt, the disk is
full, ...); 2 the command line itself was wrong. Nothing prints a traceback: every failure is one
line. Set ``SHEAFDEQ_DEBUG=1`` to see where it came from.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import sheafdeq
from sheafdeq.cli.arguments import Parser
from sheafdeq.cli.data_options import chosen_root
from sheafdeq.cli.run_names import resolve_runs
from sheafdeq.errors import SheafDEQError, UsageError
from sheafdeq.printable import printable

__all__ = ["build_parser", "main"]

DEBUG_VARIABLE = "SHEAFDEQ_DEBUG"


def build_parser() -> argparse.ArgumentParser:
    """The complete parser, one sub-parser for each command module."""
    parser = Parser(
        prog="sheafdeq",
        description="Graph neural networks that settle: train, examine, certify and run them "
        "asynchronously.",
    )
    parser.add_argument("--version", action="version", version=f"sheafdeq {sheafdeq.__version__}")
    parser.repeated(
        "--user-model",
        words="allow a model of your own, my_models:MyModel, to be imported (repeatable; before "
        "the command)",
        metavar="MODULE:CLASS",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        if hasattr(module, "configure"):
            words = " ".join((module.configure.__doc__ or "").split())
            name = module_info.name.rstrip("_")  # async is a keyword
            module.configure(commands.add_parser(name, help=module.HELP, description=words))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = build_parser()
    _complete(parser)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse ends the process itself, here it is the caller's to end
        if not stop.code:
            raise  # --help, --version
        return 2
    if getattr(options, "run", None) is None:
        parser.print_help()
        return 2
    try:
        if getattr(options, "user_model", None):
            from sheafdeq.user_models import use_model

            for place in options.user_model:
                use_model(place)
        resolve_runs(options)
        with chosen_root(getattr(options, "root", None)):
            return int(options.run(options) or 0)
    except BrokenPipeError:  # the reader (head, less) went away: not our failure
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives until the process ends
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except Exception as error:
        return fail(error)


def fail(error: Exception) -> int:
    """Name an error in one line and return the exit code; with ``SHEAFDEQ_DEBUG`` raise it
    again."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    # a list of missing files has several
    lines = describe(error).splitlines() or [type(error).__name__]
    print("sheafdeq: " + "\n".join(map(printable, lines)), file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def describe(error: Exception) -> str:
    """What happened, in words: the package's own errors say it themselves."""
    hint = f"set {DEBUG_VARIABLE}=1 to see where"
    if isinstance(error, SheafDEQError):
        return str(error)
    if isinstance(error, OSError):
        name = "" if error.filename is None else f"{os.fspath(error.filename)!s}: "
        return f"{name}{error.strerror or str(error) or type(error).__name__}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return (
            f"not enough memory ({' '.join(str(error).split())[:200] or 'no details'}): "
            "choose smaller sizes"
        )
    if isinstance(error, RecursionError):
        return f"something in the input nests too deeply ({hint})"
    if isinstance(error, ImportError):
        return f"a package is missing: {error} ({hint})"
    text = " ".join(str(error).split())
    return (
        f"unexpected {type(error).__name__}: {text[:500]} (a defect of sheafdeq: please "
        f"report it; {hint})"
    )


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell's completion, if it is asking and ``argcomplete`` (extra ``completion``) is
    there."""
    if "_ARGCOMPLETE" in os.environ:
        try:
            import argcomplete
        except ImportError:
            return
        argcomplete.autocomplete(parser)


if __name__ == "__main__":
    sys.exit(main())
