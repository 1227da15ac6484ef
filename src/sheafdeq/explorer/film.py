"""A film: what every node of a graph did in every iteration of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafdeq.asynchronous.schedule import Schedule, Slot, SlotSource
from sheafdeq.asynchronous.simulate import simulate
from sheafdeq.data.graph import Graph
from sheafdeq.diagnostics.measure import evaluating
from sheafdeq.diagnostics.multistart import random_start
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.solvers import Status

__all__ = ["Actor", "Film", "Scene", "edge_matrices", "film", "film_late", "key_frames"]

Score = Callable[[Tensor], float]


@dataclass(frozen=True, eq=False)
class Scene:
    """The graph that is drawn, and what is true about it."""

    title: str
    graph: Graph
    target: Tensor | None = None  # (n,) classes or values; None where there is none for each node
    classes: int | None = None  # number of classes; None: values
    score_name: str = "score"
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Actor:
    """A model that plays, and how it is scored."""

    title: str
    model: EquilibriumModel
    score: Score | None = None
    exposed: bool = True  # whether it may be started elsewhere


@dataclass(eq=False)
class Film:
    """All frames of one iteration. Frame k is the state after k iterations (slots, when messages
    are late)."""

    title: str
    actor: str
    kind: str  # default, start, late
    horizon: int
    prediction: NDArray[Any]  # (f, n) class numbers or values
    residual: NDArray[numpy.float32]  # (f, n) relative change the map would make now
    disagreement: NDArray[numpy.float32]  # (f, n)
    score: list[float | None]  # f
    frames: list[int]  # frames whose states are kept
    states: NDArray[numpy.float32]  # (len(frames), n, c)
    # for each kept frame (e, m, d, d); empty without
    matrices: list[NDArray[numpy.float32]] = field(default_factory=list)
    matrix_names: tuple[str, ...] = ()
    # (f - 1, e): 0 the target slept, else 1 + age of the message it read
    delays: NDArray[numpy.uint8] | None = None
    shape: tuple[int, int, int] = (1, 1, 1)  # levels, stalk dimension, channels of a state
    note: str = ""

    @property
    def length(self) -> int:
        """Number of frames."""
        return len(self.residual)


def key_frames(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` frames: dense at the start, where most happens, then in growing
    steps to the last."""
    if count <= most:
        return list(range(count))
    dense = most // 2
    rest = numpy.geomspace(dense, count - 1, most - dense)
    return sorted({*range(dense), *(round(float(value)) for value in rest), count - 1})


def film(
    scene: Scene,
    actor: Actor,
    *,
    iterations: int = 200,
    scale: float | None = None,
    seed: int = 0,
    keep: int = 48,
) -> Film:
    """Iterate synchronously, from the default start or from a random positive one of the given
    scale."""
    model = actor.model
    _checked(model, iterations)
    with evaluating(model):
        context = model.prepare(scene.graph)
        state = model.initial_state(context)
        title = f"{actor.title}, default start"
        if scale is not None:
            order = float(getattr(model, "norm_order", 2.0))
            state, title = (
                random_start(state, scale, seed, order),
                (f"{actor.title}, random start of scale {scale:g}"),
            )
        camera = _Camera(scene, actor, context, iterations + 1, keep)
        for _ in range(iterations + 1):
            image = model.step(state, context)
            if not camera.see(state, image):
                break
            state = image
    return camera.film(title, "default" if scale is None else "start")


def film_late(
    scene: Scene,
    actor: Actor,
    schedule: Schedule | None = None,
    *,
    iterations: int = 200,
    keep: int = 48,
) -> Film:
    """Iterate under a schedule: nodes that sleep, messages that are late. One frame a slot."""
    model = actor.model
    _checked(model, iterations)
    schedule = schedule if schedule is not None else Schedule(5, 2)
    with evaluating(model):
        context = model.prepare(scene.graph)
        camera = _Camera(scene, actor, context, iterations + 1, keep)
        listener = _Listener(schedule, iterations, len(context.edges.source))

        last: list[tuple[Tensor, Tensor]] = []

        def observe(_: int, __: float, state: Tensor) -> None:
            while last and len(camera.score) < listener.heard:  # slots in which every node slept
                camera.see(*last[-1])
            if len(camera.score) <= listener.heard:  # once a slot
                last[:] = [(state.clone(), model.step(state, context))]
                camera.see(*last[-1])

        marks = [i / scene.graph.num_nodes for i in range(iterations * scene.graph.num_nodes + 2)]
        end = simulate(
            model,
            scene.graph,
            listener,
            work=iterations + 1.0,
            context=context,
            marks=marks,
            observe=observe,
        )
    made = camera.film(
        f"{actor.title}, late messages ({schedule.window}, {schedule.delay_bound})", "late"
    )
    made.delays = listener.delays
    if end.status in (Status.DIVERGED, Status.NON_FINITE) and not made.note:
        made.note = (
            f"The run {end.status.label} after {listener.heard} slots; the film ends there. "
        )
    made.note += (
        f"Every node updates at least once in {schedule.window} slots and reads messages up to "
        f"{schedule.delay_bound} slots old."
    )
    return made


def _checked(model: EquilibriumModel, iterations: int) -> None:
    if not isinstance(model, EquilibriumModel):
        raise InputError(f"{type(model).__name__} is feed-forward: there is no iteration to watch")
    if iterations < 1:
        raise InputError(f"iterations must be at least 1, got {iterations!r}")


class _Listener:
    """A schedule of a fixed number of slots that writes down how old every message was."""

    def __init__(self, schedule: SlotSource, slots: int, edges: int) -> None:
        self.schedule, self.count, self.heard = schedule, slots, 0
        self.delays = numpy.zeros((slots, edges), dtype=numpy.uint8)

    @property
    def window(self) -> int:
        """As the schedule promises."""
        return self.schedule.window

    @property
    def delay_bound(self) -> int:
        """As the schedule promises."""
        return self.schedule.delay_bound

    def describe(self) -> dict[str, Any]:
        """As the schedule describes itself."""
        return self.schedule.describe()

    def slots(self, edges: Edges) -> Iterator[Slot]:
        """The schedule's slots, until the film is full."""
        for number, slot in zip(range(self.count), self.schedule.slots(edges), strict=False):
            arriving = edges.edges_into(slot.active)
            self.delays[number, arriving.numpy()] = numpy.minimum(slot.delay.numpy() + 1, 255)
            self.heard = number + 1
            yield slot


class _Camera:
    """Looks at every state, keeps numbers for all frames and whole states for some."""

    def __init__(self, scene: Scene, actor: Actor, context: Any, count: int, keep: int) -> None:
        self.scene, self.actor, self.context, self.count = scene, actor, context, count
        self.wanted = set(key_frames(count, keep))
        n = scene.graph.num_nodes
        kind: Any = numpy.uint8 if scene.classes is not None else numpy.float32
        self.prediction = numpy.zeros((count, n), dtype=kind)
        self.residual = numpy.zeros((count, n), dtype=numpy.float32)
        self.disagreement = numpy.zeros((count, n), dtype=numpy.float32)
        self.score: list[float | None] = []
        self.frames: list[int] = []
        self.states: list[NDArray[numpy.float32]] = []
        self.matrices: list[NDArray[numpy.float32]] = []
        self.names: tuple[str, ...] = ()
        self.note = ""

    def see(self, state: Tensor, image: Tensor) -> bool:
        """One frame; False once the map has returned something that is not finite."""
        k = len(self.score)
        if k >= self.count or self.note:
            return False
        if not bool(torch.isfinite(image).all()):
            self.note = f"The state left all bounds after {k} iterations; the film ends there. "
        model = self.actor.model
        outputs = model.readout(state, self.context)  # type: ignore[operator]
        predicted = outputs.argmax(1) if self.scene.classes is not None else outputs[:, 0]
        self.prediction[k] = predicted.numpy()
        change = RELATIVE_SUP(image, state).float()
        self.residual[k] = torch.where(
            torch.isfinite(change), change, torch.full_like(change, 1e9)
        ).numpy()
        names, matrices = edge_matrices(model, state, self.context)
        self.disagreement[k] = _disagreement(
            model, state, self.context.edges, matrices if len(names) == 2 else None
        )
        score = self.actor.score
        self.score.append(None if score is None else _finite(score(outputs)))
        if k in self.wanted:
            self.frames.append(k)
            self.states.append(state.float().numpy().copy())
            self.names = names
            if matrices is not None:
                self.matrices.append(matrices.float().numpy())
        return not self.note

    def film(self, title: str, kind: str) -> Film:
        """What was seen. A film that ended early (nothing changes any more, or all is lost) keeps
        its last frame."""
        seen = len(self.score)
        for array in (self.prediction, self.residual, self.disagreement):
            array[seen:] = array[seen - 1]
        self.score += [self.score[-1]] * (self.count - seen)
        model = self.actor.model
        width = self.states[0].shape[1]
        d, q = int(getattr(model, "stalk_dim", 1)), int(getattr(model, "channels", 0) or 0)
        shape = (width // (d * q), d, q) if q and width % (d * q) == 0 else (1, 1, width)
        return Film(
            title,
            self.actor.title,
            kind,
            model.steps,
            self.prediction,
            self.residual,
            self.disagreement,
            self.score,
            self.frames,
            numpy.stack(self.states),
            self.matrices,
            self.names,
            None,
            shape,
            self.note,
        )


def edge_matrices(
    model: EquilibriumModel, state: Tensor, context: Any
) -> tuple[tuple[str, ...], Tensor | None]:
    """Names and (e, m, d, d) of the matrices on every edge now: restriction maps, or the block a
    cascade's last level uses."""
    operator = getattr(model, "operator", None)
    if callable(operator):
        maps = operator(state, context)
        return ("source map", "target map"), torch.stack(
            [maps.source_maps, maps.target_maps], dim=1
        )
    sheaf = getattr(model, "sheaf", None)
    if callable(sheaf) and hasattr(model, "levels"):
        c, last = int(model.width), int(model.levels) - 1  # type: ignore[arg-type]
        below = state[:, (last - 1) * c : last * c] if last else None
        blocks = sheaf(last, below, context).blocks / context.edges.weight[:, None, None]
        return ("target map times source map, last level",), blocks[:, None]
    return (), None


def _disagreement(
    model: EquilibriumModel, state: Tensor, edges: Edges, maps: Tensor | None
) -> NDArray[numpy.float32]:
    r"""(n,) how far a node is from agreeing with its neighbours, root mean square over incoming
    edges.

    With restriction maps ||F_src h_u - F_tgt h_v|| / (||F_src h_u|| + ||F_tgt h_v||), without
    ||h_u - h_v|| / (||h_u|| + ||h_v||): between 0 and 1.
    """
    source, target = edges.source, edges.target
    rows = state
    if maps is not None:
        d = maps.shape[-1]
        values = rows.view(len(rows), d, -1)
        first = (maps[:, 0] @ values[source]).flatten(1)
        second = (maps[:, 1] @ values[target]).flatten(1)
    else:
        width = int(getattr(model, "width", 0) or 0)
        rows = rows[:, -width:] if width else rows  # a cascade speaks by its last level
        first, second = rows[source], rows[target]
    gap = torch.linalg.vector_norm(first - second, dim=1)
    size = torch.linalg.vector_norm(first, dim=1) + torch.linalg.vector_norm(second, dim=1) + 1e-12
    share = (gap / size).square()
    total = share.new_zeros(edges.num_targets).index_add(0, target, share)
    count = torch.bincount(target, minlength=edges.num_targets).clamp(min=1)
    result: NDArray[numpy.float32] = (total / count).sqrt().float().nan_to_num(1.0).numpy()
    return result


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
