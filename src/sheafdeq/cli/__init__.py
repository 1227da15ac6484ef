"""The command line. Every module in this folder that defines ``configure`` is one command.

Exit codes: 0 the work was done; 1 it failed (did not converge, a file was corrupt, ...); 2 the command line
itself was wrong. A user's mistake never prints a traceback; set ``SHEAFDEQ_DEBUG=1`` to see one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import sheafdeq
from sheafdeq.errors import SheafDEQError, UsageError

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The complete parser, one sub-parser for each command module."""
    parser = argparse.ArgumentParser(
        prog="sheafdeq",
        description="Graph neural networks that settle: train, examine, certify and run them asynchronously.",
    )
    parser.add_argument("--version", action="version", version=f"sheafdeq {sheafdeq.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        if hasattr(module, "configure"):
            module.configure(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if getattr(options, "run", None) is None:
        parser.print_help()
        return 2
    try:
        return int(options.run(options) or 0)
    except UsageError as error:
        return _report(error, 2)
    except (SheafDEQError, FileNotFoundError, PermissionError) as error:
        return _report(error, 1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader (head, less) went away: not our failure
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives until the process ends
        return 0


def _report(error: Exception, code: int) -> int:
    if os.environ.get("SHEAFDEQ_DEBUG"):
        raise error
    print(f"sheafdeq: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
