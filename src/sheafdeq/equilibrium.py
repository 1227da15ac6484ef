"""What every model of this package is: something that turns a :class:`Graph` into an
:class:`Output`.

* :class:`GraphModel`: the common face (``run`` for prepared graphs, ``forward`` for tensors, as PyG
  users write it).
* :class:`EquilibriumModel`: a recurrence with its solver and its gradient rule.
* :class:`ExplicitModel`: an ordinary feed-forward network.

Training, diagnostics, certificates and the asynchronous runtime never ask which model they have;
they ask only whether it is an
:class:`EquilibriumModel` when they need its map.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from sheafdeq.adjoints import Adjoint, adjoint_from
from sheafdeq.data.given_graph import given_graph
from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.distances import RELATIVE_ENTRY, Distance
from sheafdeq.errors import ExportError, InputError
from sheafdeq.full_precision import full_precision
from sheafdeq.options import constructor_signature, unknown_name
from sheafdeq.plain_tensor import plain_tensor
from sheafdeq.solvers import Partition, Picard, Solution, Solver, solver_from
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.iterate import Observer
from sheafdeq.tracing import exporting

__all__ = [
    "EQUILIBRIUM_STEPS",
    "EQUILIBRIUM_TOLERANCE",
    "EquilibriumLayer",
    "EquilibriumModel",
    "ExplicitModel",
    "GraphModel",
    "Output",
    "Readout",
    "Solving",
]

EQUILIBRIUM_TOLERANCE = 1e-6
"""Residual of every node (in the model's own distance) below which a guaranteed model counts as
settled."""
EQUILIBRIUM_STEPS = 2000
"""Step limit of that solve (of every level of a cascade): far above what a proved rate needs in
practice."""

EXPORTABLE = (
    "outputs of a fixed number of Picard steps can be, of every model but EIGNN (a closed form), "
    "EnergyGNN (a minimiser) and SheafRelay (an order of the edges)"
)

AnySolver = TypeVar("AnySolver", bound=Solver)


@dataclass(frozen=True)
class Output:
    """Node outputs (n, o) and, for equilibrium models, how the solve ended."""

    logits: Tensor
    solution: Solution | None = None


class Readout(nn.Linear):
    """A linear readout that accepts the context the contract passes along."""

    def forward(self, state: Tensor, context: Any = None) -> Tensor:
        """(n, c) -> (n, o)."""
        return super().forward(state)


class _WholeSignature:
    """What ``help`` and editors show of a constructor: inherited options by name."""

    def __get__(self, model: object, kind: type) -> inspect.Signature:
        if model is not None:  # the signature of a model is that of its forward
            raise AttributeError("__signature__")
        return constructor_signature(kind)


class GraphModel(nn.Module):
    """The face all models share."""

    in_channels: int
    out_channels: int
    edge_dim: int | None = None
    edge_input: ClassVar[Literal["taken", "optional", "ignored"]] = "taken"
    """A graph's must fit ``edge_dim`` (optional: only where it was given), or are never read."""
    weighted: ClassVar[bool] = False
    """Whether it takes graphs with an edge_weight."""

    exportable: ClassVar[bool] = True
    """Whether ``torch.export`` can write it out (:mod:`sheafdeq.tracing`)."""
    # what the constructor was called with, for save_pretrained
    given: tuple[tuple[Any, ...], dict[str, Any]]

    __signature__ = _WholeSignature()

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Note the arguments before the constructor reads them; a name it does not know is an
        error that lists those it does."""
        signature = inspect.signature(cls)
        try:
            signature.bind_partial(*arguments, **options)
        except TypeError as error:
            unknown = next((name for name in options if name not in signature.parameters), None)
            if unknown is None:
                raise TypeError(f"{cls.__name__}: {error}") from None
            wrong = unknown_name(f"{cls.__name__} takes no", unknown, signature.parameters)
            raise TypeError(str(wrong)) from None
        model = super().__new__(cls)
        model.__dict__["given"] = (arguments, options)
        return model

    @abstractmethod
    def run(self, graph: AnyGraph, **options: Any) -> Output:
        """Outputs for a graph, with the solution where there is one."""

    def forward(
        self,
        x: Tensor | AnyGraph,
        edge_index: Any = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        return_info: bool = False,
        **options: Any,
    ) -> Any:
        """Node outputs (n, o), or ``(outputs, solution)`` with ``return_info=True``.

        ``x`` (n, f), ``edge_index`` (2, e), ``edge_attr`` (e, d_e), ``batch`` (n,) as in PyG, or a
        ``Data`` or ``Batch`` (or :class:`~sheafdeq.data.graph.Graph`) in the place of all four.
        ``edge_weight`` (e,) nonnegative, how much each edge counts (:meth:`Graph.build`).
        Further options go to :meth:`run` (for equilibrium models: ``steps=100`` continues past the
        trained horizon).
        """
        if exporting():
            return self._exported(x, edge_index, edge_attr, edge_weight, return_info, options)
        if torch.compiler.is_compiling():
            from sheafdeq.compiled_call import with_compiled_step

            tensors = (x, edge_index, edge_attr, batch)
            options.update(edge_weight=edge_weight, return_info=return_info)
            return with_compiled_step(self, tensors, **options)
        output = self.run(given_graph(x, edge_index, edge_attr, batch, edge_weight), **options)
        return (output.logits, output.solution) if return_info else output.logits

    def _exported(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        edge_weight: Tensor | None,
        return_info: bool,
        options: dict[str, Any],
    ) -> Tensor:
        """What ``torch.export`` writes out: outputs of one graph, or of several side by side."""
        if not self.exportable or return_info:
            what = "a solution" if self.exportable else type(self).__name__
            raise ExportError(f"torch.export cannot write {what} out: {EXPORTABLE}")
        with torch.no_grad():
            graph = Graph.build(x, edge_index, edge_attr, edge_weight=edge_weight)
            return self.run(graph, **options).logits

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as the constructor does: every part by its own rule."""
        _reset(self)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` and a sealed ``config.json`` into ``folder``."""
        from sheafdeq.pretrained import save

        save(self, self.given, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The model that :meth:`save_pretrained` wrote, in evaluation mode.

        Nothing is unpickled, and what was altered is a :class:`~sheafdeq.errors.RecordError`.
        """
        from sheafdeq.pretrained import restored

        return restored(cls, Path(folder))

    def project(self) -> None:
        """Restore parameter constraints; the trainer calls it after every optimiser step."""

    def check(self, graph: Graph) -> None:
        """Raise :class:`InputError` when the graph's features do not fit this model."""
        if self.in_channels == -1:  # parameters without a shape take it from this graph
            self.in_channels = graph.x.shape[1]
        if graph.x.shape[1] != self.in_channels:
            raise InputError(
                f"the graph has {graph.x.shape[1]} node features, the model was made "
                f"for {self.in_channels}"
            )
        if graph.edges.share is not None and not self.weighted:
            raise InputError(
                f"{type(self).__name__} takes no edge_weight: leave it out, or give it as a column "
                "of edge_attr to a model with edge_dim"
            )
        wanted = self.edge_dim or 0
        read = {"taken": True, "optional": wanted > 0, "ignored": False}[self.edge_input]
        if graph.edge_dim != wanted and read:
            if wanted and graph.edge_attr is None:
                raise InputError(f"the model needs edge_attr of width {wanted}, the graph has none")
            hint = (
                "make the model with edge_dim=" + str(graph.edge_dim)
                if not wanted
                else f"give width {wanted}"
            )
            raise InputError(
                f"the graph has edge features of width {graph.edge_dim}, the model "
                f"takes {wanted}: {hint}"
            )
        parameter = next(self.parameters(), None)
        if parameter is not None and parameter.dtype != graph.x.dtype:
            raise InputError(
                f"the features are {graph.x.dtype}, the model is {parameter.dtype}: use "
                "model.double() or x.float()"
            )
        if parameter is not None and parameter.device != graph.x.device:
            raise InputError(
                f"the features are on {graph.x.device}, the model is on "
                f"{parameter.device}: move one of them"
            )

    def num_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


def _reset(module: nn.Module) -> None:
    for part in module.children():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
        else:
            _reset(part)


class ExplicitModel(GraphModel):
    """A feed-forward network: implement :meth:`logits`."""

    @abstractmethod
    def logits(self, graph: Graph) -> Tensor:
        """(n, o)."""

    def run(self, graph: AnyGraph, **options: Any) -> Output:
        """Outputs; a feed-forward network has no solution to report."""
        if options:
            raise InputError(
                f"{type(self).__name__} is feed-forward and takes no solver options, "
                f"got {sorted(options)}"
            )
        graph = Graph.of(graph)
        with full_precision(graph.x.device):
            self.check(graph)
            return Output(self.logits(graph))


class Solving(TypedDict, total=False):
    """The options of every equilibrium model: a constructor that hands ``**options`` on to this
    one has them too, in the registry and on the command line."""

    steps: int
    solver: str | Solver | None
    gradient: str | Adjoint


class EquilibriumModel(GraphModel):
    """A recurrence, its solver and its gradient rule.

    A model of your own subclasses this and provides ``prepare``, ``initial_state``, ``step`` and
    ``readout`` (a method, or a
    :class:`Readout` submodule); see ``docs/adding_a_model.md``. ``local_step`` makes it run
    asynchronously.
    """

    # one equilibrium, reached from every start, is proved for every weight
    guaranteed: ClassVar[bool] = False
    solver: Solver
    adjoint: Adjoint
    distance: Distance = RELATIVE_ENTRY
    """Decides convergence where a solver names no distance of its own; models with positive states
    take Thompson's."""

    def __init__(
        self,
        *,
        steps: int = 20,
        solver: str | Solver | None = None,
        gradient: str | Adjoint = "unrolled",
    ) -> None:
        super().__init__()
        self.solver = solver_from(solver, steps)
        self.adjoint = adjoint_from(gradient)

    @property
    def steps(self) -> int:
        """The trained horizon (step limit of the solver)."""
        return self.solver.steps

    @abstractmethod
    def prepare(self, graph: Graph) -> Any:
        """Everything constant during one solve, as a frozen dataclass."""

    @abstractmethod
    def initial_state(self, context: Any) -> Tensor:
        """(n, c) the default start."""

    @abstractmethod
    def step(self, state: Tensor, context: Any) -> Tensor:
        """(n, c) -> (n, c), pure."""

    def gathered_step(self, own: Tensor, table: Tensor, index: Tensor, context: Any) -> Tensor:
        """``local_step`` with edge k reading ``table[index[k]]``; override where transforming the
        table first is cheaper."""
        result: Tensor = self.local_step(own, table[index], context)  # type: ignore[operator]
        return result

    def judged(self, solver: AnySolver) -> AnySolver:
        """``solver`` with this model's distance, unless it has one of its own."""
        return solver.judged_by(self.distance) if isinstance(solver, FixedPointSolver) else solver

    def solve(
        self,
        context: Any,
        graph: Graph,
        *,
        steps: int | None = None,
        initial_state: Tensor | None = None,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        observe: Observer | None = None,
    ) -> Solution:
        """Iterate the prepared map. Closed-form and optimisation models override this."""
        solver = solver if solver is not None else self.solver
        if steps is not None:
            solver = solver.with_steps(steps)
        solver = self.judged(solver)
        start = self.initial_state(context)
        if initial_state is not None:
            initial_state = plain_tensor(initial_state, "the initial state")
            if initial_state.shape != start.shape or initial_state.dtype != start.dtype:
                got, need = (f"{tuple(t.shape)} {t.dtype}" for t in (initial_state, start))
                raise InputError(
                    f"the initial state must be {need} for this model and graph, got {got}"
                )
            start = self._representable(initial_state)

        def function(state: Tensor) -> Tensor:
            return self.step(state, context)

        options: dict[str, Any] = {
            "partition": Partition(graph.graph_of_node, graph.num_graphs),
            "observe": observe,
        }
        if not torch.is_grad_enabled():
            return solver.solve(function, start, **options)
        return (adjoint or self.adjoint).solve(function, start, solver, **options)

    def _representable(self, start: Tensor) -> Tensor:
        """A positive start of a guaranteed model, moved to where products with it neither overflow
        nor vanish.

        (2^-100 to 2^100 in float32.) Its first step lands in the invariant box from anywhere.
        """
        if not self.guaranteed:
            return start
        exponent = 100 if start.dtype == torch.float32 else 900
        return torch.where(start > 0, start.clamp(2.0**-exponent, 2.0**exponent), start)

    def run(self, graph: AnyGraph, **options: Any) -> Output:
        """Solve on a graph and read out.

        Options: ``steps`` (continue past, or stop before, the trained horizon), ``initial_state``
        (n, c), ``solver`` and ``adjoint`` (objects, or names as in the constructor), ``observe``
        (called with every state).
        """
        graph, options = Graph.of(graph), self._solve_options(options)
        with full_precision(graph.x.device):
            self.check(graph)
            context = self.prepare(graph)
            solution = self.solve(context, graph, **options)
            return Output(self.readout(solution.value, context), solution)  # type: ignore[operator]

    def _solve_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of :meth:`solve` as they were given, names replaced by the objects they name."""
        known = _options_of_solve(type(self))  # type: ignore[arg-type]  # a type is hashable
        for name in options:
            if name not in known:
                raise unknown_name(f"{type(self).__name__} takes no option", name, known)
        options = dict(options)
        if options.get("solver") is not None:
            steps = options.get("steps")
            options["solver"] = solver_from(
                options["solver"], self.steps if steps is None else steps
            )
        if options.get("adjoint") is not None:
            options["adjoint"] = adjoint_from(options["adjoint"])
        return options

    def run_to_equilibrium(
        self,
        graph: AnyGraph,
        *,
        tolerance: float = EQUILIBRIUM_TOLERANCE,
        steps: int = EQUILIBRIUM_STEPS,
    ) -> Output:
        """Solve until every node is at rest, however many steps that takes below ``steps``, and
        read out.

        This is what a guaranteed model promises and is judged by; the trained horizon is a training
        device. Others may be asked too, and the status says what came of it.
        """
        graph = Graph.of(graph)
        solver = Picard(steps=steps, tolerance=tolerance, stop_early=True)
        with full_precision(graph.x.device):
            self.check(graph)
            context = self.prepare(graph)
            solution = self.solve_to_equilibrium(context, graph, solver)
            return Output(self.readout(solution.value, context), solution)  # type: ignore[operator]

    def solve_to_equilibrium(self, context: Any, graph: Graph, solver: Solver) -> Solution:
        """Iterate the prepared map with a solver that stops at a tolerance."""
        return self.solve(context, graph, solver=solver)


@cache
def _options_of_solve(kind: type) -> tuple[str, ...]:
    """Names that ``solve`` takes, in this class or one above it."""
    signatures = (
        inspect.signature(vars(above)["solve"]) for above in kind.__mro__ if "solve" in vars(above)
    )
    names = {
        name: None
        for signature in signatures
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return tuple(names)


class EquilibriumLayer(EquilibriumModel):
    """An equilibrium that hands over its node states: provide ``prepare``, ``initial_state`` and
    ``step``.

    ``layer(x, edge_index, edge_attr=None, batch=None)`` is (n, c), to be stacked, put into PyG's
    ``Sequential`` and pooled.
    """

    def readout(self, state: Tensor, context: Any) -> Tensor:
        """(n, c), the state itself."""
        return state
