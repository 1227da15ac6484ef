"""Named errors and warnings. Every message says what came, what was expected, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the solution rides along on the error; importing it here would point upwards
    from sheafdeq.solvers.solution import Solution

__all__ = [
    "BackwardWarning",
    "ConvergenceError",
    "DataError",
    "DerivativeError",
    "ExportError",
    "IncompatibleError",
    "InputError",
    "KernelWarning",
    "OptionError",
    "RecordError",
    "SheafDEQError",
    "StoreError",
    "UsageError",
    "WorkerError",
]


class SheafDEQError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(SheafDEQError, ValueError):
    """A value handed to the package cannot be used; the message names it and the remedy."""


class IncompatibleError(InputError):
    """A trained model does not fit the task it is to be judged on; the message names both
    widths."""


class UsageError(SheafDEQError):
    """A command line that cannot be carried out as written (exit code 2)."""


class OptionError(InputError, UsageError):
    """An option, by name or value, that a model, task, command or configuration does not take (exit
    code 2)."""


class DataError(SheafDEQError):
    """A data file is missing, corrupt, of the wrong checksum, or of a kind that is refused."""


class DerivativeError(SheafDEQError, RuntimeError):
    """A derivative that is not written was asked for; the message names the path that has it."""


class ExportError(SheafDEQError, RuntimeError):
    """A model that ``torch.export`` cannot write out as it is asked to; the message says what can
    be."""


class RecordError(SheafDEQError):
    """A run record or checkpoint is missing, corrupt or not what its hash says."""


class StoreError(SheafDEQError):
    """The run store cannot be used: the disk is full or gone, there are no locks, or something else
    lies in its place."""


class WorkerError(SheafDEQError):
    """A worker of a distributed run failed, or could not be brought back; the message says which
    and why."""


class ConvergenceError(SheafDEQError):
    """An iteration did not converge; ``solution`` holds everything that was computed."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


class KernelWarning(UserWarning):
    """The native kernel is absent or unusable and the pure PyTorch path is taken instead."""


class BackwardWarning(UserWarning):
    """The adjoint system of an implicit gradient was not solved to its tolerance."""
