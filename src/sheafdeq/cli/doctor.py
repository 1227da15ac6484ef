"""``sheafdeq doctor``: what this installation consists of, and what is missing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sheafdeq.cli.arguments import Parser
from sheafdeq.report.grid import terminal_width, wrapped

__all__ = ["configure", "examine", "run"]


HELP = "versions, threads, kernel, data root"


def configure(parser: Parser) -> None:
    """Say what this installation consists of: versions, thread counts, the native kernel, the data
    root."""
    parser.answers(run)


def examine() -> dict[str, Any]:
    """Everything ``doctor`` prints, as plain data."""
    import importlib.metadata
    import os
    import platform
    import sys

    import torch

    import sheafdeq
    from sheafdeq.data.files import data_root
    from sheafdeq.ops.native_module import native_description

    versions: dict[str, str | None] = {}
    for name in (
        "torch",
        "torch_geometric",
        "numpy",
        "scipy",
        "safetensors",
        "pydantic",
        "rich",
        "matplotlib",
        "ray",
        "torchdeq",
    ):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    root = data_root()
    return {
        "sheafdeq": sheafdeq.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "threads": {
            "torch": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "accelerator": str(torch.accelerator.current_accelerator())
        if _accelerated(torch)
        else None,
        "kernel": native_description(),
        "data_root": {"path": str(root), "exists": root.is_dir()},
        "executable": os.path.basename(sys.executable),
    }


def _accelerated(torch: Any) -> bool:
    return hasattr(torch, "accelerator") and bool(torch.accelerator.is_available())


def run(options: argparse.Namespace) -> int:
    """Print the findings."""
    findings = examine()
    if options.json:
        print(json.dumps(findings, indent=2))
        return 0
    _say(f"sheafdeq {findings['sheafdeq']} on Python {findings['python']}, {findings['platform']}")
    _say(
        "packages   "
        + ", ".join(
            f"{name} {version or 'absent'}" for name, version in findings["versions"].items()
        )
    )
    threads = findings["threads"]
    _say(
        f"threads    {threads['torch']} of {threads['cores']} cores (OMP_NUM_THREADS "
        f"{threads['OMP_NUM_THREADS'] or 'not set'})"
    )
    kernel = findings["kernel"]
    if kernel["available"]:
        _say(
            f"kernel     native, {kernel['instruction_set']}, OpenMP "
            f"{'yes' if kernel['openmp'] else 'no'} ({kernel['compiler']})"
        )
    else:
        _say(
            "kernel     pure PyTorch (native kernel not built: install a C++ compiler and "
            "reinstall; results are the same, slower)"
        )
    _say(f"device     {findings['accelerator'] or 'CPU only'}")
    root = findings["data_root"]
    state = (
        "present"
        if root["exists"]
        else (
            "not there yet; set SHEAFDEQ_DATA or pass --root, or let a task download with consent"
        )
    )
    _say(f"data root  {root['path']} ({state})")
    return 0


def _say(text: str) -> None:
    print(wrapped(text, terminal_width(), 11))
