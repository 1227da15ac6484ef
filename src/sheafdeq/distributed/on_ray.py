"""Workers as Ray actors: the engine for many machines.

Each part is an actor that Ray starts again, on another machine if need be, when it or its machine
is lost. Letters go from actor to actor; of those that wait for a slow reader only the newest is
sent. The kept state of part p lies with the actor of part p + 1, so it survives the loss of one
machine; if both are lost, the part begins again at the start.

Security: a cluster started here has token authentication on, no dashboard, and listens on the
loopback address. A
cluster that is joined must have been started with ``RAY_AUTH_MODE=token`` and the same token. Ray
unpickles what its members send each other; the token is what keeps others out.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from sheafdeq.distributed.engine import PartSource, failure, loaded, versions
from sheafdeq.distributed.mail import Faults, FaultyMail, Kind, Mail
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part import Part
from sheafdeq.distributed.worker import Worker
from sheafdeq.distributed.workers import WorkerOptions, Workers
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import UsageError, WorkerError

__all__ = ["RayActors", "import_ray", "join_cluster"]

START_SECONDS = 120.0
CONCURRENCY = {"commands": 1, "letters": 2, "reports": 1}
LOOPBACK = "127.0.0.1"


def import_ray(address: str | None = None) -> Any:
    """Ray, with its settings made before its core reads them: token on; loopback unless a cluster
    elsewhere is joined."""
    from sheafdeq.training.engines import ray as runs  # one place knows how Ray is started safely

    if address is not None and not address.startswith((LOOPBACK, "localhost")):
        # the machines of the cluster must be able to answer
        os.environ.setdefault(runs.LISTEN_VARIABLE, "1")
    # the coming default; else Ray warns at every start
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return runs._import_ray()


def join_cluster(ray: Any, address: str | None) -> bool:
    """Use the cluster that is there, the one at ``address``, or start one here; True if it was
    started or joined here."""
    from sheafdeq.training.engines import ray as runs

    if ray.is_initialized():
        return False
    if address is None:
        runs._start(ray, os.cpu_count() or 1, None)
        return True
    try:
        host, _, port = address.rpartition(":")
        # Ray ends the process when nobody answers
        socket.create_connection((host, int(port)), timeout=10).close()
        runs._start(ray, 1, address)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster could be joined at {address!r} ({error}): start one with "
            "`RAY_AUTH_MODE=token ray start --head --port PORT --include-dashboard=false` and "
            "give HOST:PORT"
        ) from error
    return True


class RayActors(Workers):
    """One actor for each part."""

    name = "ray"

    def __init__(
        self,
        parts: Sequence[PartSource],
        model: EquilibriumModel,
        *,
        address: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(parts, **options)
        self.lossy = True  # an actor that is started again has empty boxes
        self.sources, self.model, self.address = list(parts), model, address
        self.ray: Any = None
        self.joined = False
        self.job = f"sheafdeq-{uuid.uuid4().hex[:12]}"
        self.actors: list[Any] = []
        # an actor that is started again reads them again: they must not be let go
        self.inputs: list[Any] = []
        self.incarnations: list[str | None] = [None] * self.count
        # host and process of every worker
        self.places: list[tuple[str, int]] = [("", 0)] * self.count
        self.waiting: dict[Any, int] = {}  # answers under way -> part
        self.events: list[tuple[int, Message]] = []

    # ------------------------------------------------------------------ starting and ending

    def start(self) -> None:
        """Join or start a cluster, see that every machine has the package, and make the actors."""
        ray = self.ray = import_ray(self.address)
        self.joined = join_cluster(ray, self.address)
        _probe(ray)
        host = ray.remote(
            num_cpus=0, max_restarts=-1, max_task_retries=0, concurrency_groups=CONCURRENCY
        )(_Host)
        model = ray.put(ray.cloudpickle.dumps(self.model))
        for number, source in enumerate(self.sources):
            part = ray.put(source.to_bytes()) if isinstance(source, Part) else str(source)
            self.inputs += [part, model]
            actor = host.options(
                name=f"{self.job}-{number}", namespace=self.job, scheduling_strategy="SPREAD"
            ).remote(
                number, self.count, self.job, [part, model], self.threads, self.faults.to_json()
            )
            self.actors.append(actor)
        for number in range(self.count):
            self._greet(number)

    def _greet(self, part: int) -> None:
        """Ask the actor who it is; the answer is its ``hello``."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                answer = self.actors[part].introduce.options(concurrency_group="commands").remote()
                incarnation, host, process, facts = self.ray.get(answer, timeout=START_SECONDS)
                break
            except self.ray.exceptions.GetTimeoutError as error:
                raise WorkerError(
                    f"part {part} found no machine within {START_SECONDS:g} seconds"
                ) from error
            except self.ray.exceptions.RayActorError as error:
                if time.monotonic() > deadline:
                    raise WorkerError(
                        f"the actor of part {part} cannot be started: {error}"
                    ) from error
                time.sleep(0.1)
        self.incarnations[part], self.places[part] = incarnation, (host, process)
        self.events.append((part, Message("hello", facts)))
        self._ask(part)

    def _ask(self, part: int) -> None:
        answer = (
            self.actors[part]
            .reports.options(concurrency_group="reports")
            .remote(self.incarnations[part])
        )
        self.waiting[answer] = part

    def stop(self) -> None:
        """End the actors; leave or end the cluster."""
        if self.ray is None or not self.ray.is_initialized():
            return
        for actor in self.actors:
            with contextlib.suppress(Exception):
                self.ray.kill(actor, no_restart=True)
        self.actors, self.inputs, self.waiting = [], [], {}
        if self.joined:
            self.ray.shutdown()

    # ------------------------------------------------------------------ talking

    def connect(self, sizes: Sequence[dict[str, Any]], width: int, dtype: str) -> None:
        """Actors find each other by name."""

    def tell(self, part: int, message: Message) -> None:
        """Commands to one actor arrive in order."""
        with contextlib.suppress(self.ray.exceptions.RayActorError):
            call = self.actors[part].command.options(concurrency_group="commands")
            call.remote(self.incarnations[part], message.encode())

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """Answers of any actor."""
        events, self.events = self.events, []
        if events or not self.waiting:
            return events
        ready, _ = self.ray.wait(list(self.waiting), num_returns=1, timeout=seconds)
        for answer in ready:
            part = self.waiting.pop(answer)
            try:
                incarnation, reports = self.ray.get(answer)
            except (
                self.ray.exceptions.RayActorError,
                self.ray.exceptions.RayTaskError,
                self.ray.exceptions.RaySystemError,
            ):
                events.append((part, Message("died")))
                continue
            # it died and was started again between two questions
            if incarnation != self.incarnations[part]:
                events.append((part, Message("died")))
                continue
            events += [(part, Message.decode(data)) for data in reports]
            self._ask(part)
        return events

    def revive(self, part: int) -> None:
        """Ray has started it again, or will."""
        self._greet(part)

    def kill(self, part: int) -> None:
        """SIGKILL where the process is on this machine, else Ray's own way without restart being
        forbidden."""
        host, process = self.places[part]
        if host == socket.gethostname():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        else:
            self.ray.kill(self.actors[part], no_restart=False)


def _probe(ray: Any) -> None:
    """Every machine of the cluster runs this package in this version; named errors before anything
    is placed."""
    wanted = versions()

    # a nested function travels as code, so it runs where the package is missing
    def look() -> dict[str, str]:
        try:
            from sheafdeq.distributed.engine import versions as found
        except ImportError as error:
            return {"error": str(error)}
        return found()

    task = ray.remote(num_cpus=0, max_retries=2)(look)
    alive = [node for node in ray.nodes() if node["Alive"]]
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    answers = [
        task.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote()
        for node in alive
    ]
    for node, answer in zip(alive, answers, strict=True):
        place = node["NodeManagerHostname"]
        try:
            found = ray.get(answer, timeout=START_SECONDS)
        except ray.exceptions.RayError as error:
            raise WorkerError(f"machine {place} does not answer: {error}") from error
        if "error" in found:
            raise WorkerError(
                f"machine {place} has no sheafdeq ({found['error']}): install "
                "sheafdeq[distributed] there"
            )
        for name, version in wanted.items():
            if found.get(name) != version:
                raise WorkerError(
                    f"machine {place} runs {name} {found.get(name)}, the driver {version}: "
                    "install the same version everywhere"
                )


# ---------------------------------------------------------------------- inside an actor


class _Host:
    """An actor around one worker: the worker runs in a thread of its own, the methods only pass
    things on."""

    def __init__(
        self,
        number: int,
        count: int,
        job: str,
        inputs: list[Any],
        threads: int,
        faults: dict[str, Any],
    ) -> None:
        import ray

        torch.set_num_threads(threads)
        part = inputs[0] if isinstance(inputs[0], str) else ray.get(inputs[0])
        model = ray.get(inputs[1])
        self.number, self.incarnation = number, uuid.uuid4().hex
        self.news = threading.Event()
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.mail = _RayMail(ray, number, count, job, self.news)
        held = Part.from_bytes(part, f"part {number}") if isinstance(part, bytes) else loaded(part)
        mail: Mail = self.mail
        if not Faults(**faults).none:
            mail = FaultyMail(mail, Faults(**faults), number)
        self.worker = Worker(held, ray.cloudpickle.loads(model), mail)
        threading.Thread(target=self._serve, name=f"part-{number}", daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                if not self.worker.busy:
                    self.news.wait(0.01)
                self.news.clear()
                with contextlib.suppress(queue.Empty):
                    while True:
                        self.worker.tell(self.inbox.get_nowait())
                for report in self.worker.turn():
                    self.outbox.put(report.encode())
        except BaseException as error:
            self.outbox.put(failure(self.number, error).encode())

    def introduce(self) -> tuple[str, str, int, dict[str, str]]:
        """Who this is: a new name after every restart."""
        return self.incarnation, socket.gethostname(), os.getpid(), versions()

    def command(self, incarnation: str, data: bytes) -> None:
        """A command of the driver; one that was meant for a predecessor is dropped."""
        if incarnation == self.incarnation:
            self.inbox.put(Message.decode(data))
            self.news.set()

    def reports(self, incarnation: str) -> tuple[str, list[bytes]]:
        """What the worker has to say, within a second."""
        found: list[bytes] = []
        if incarnation == self.incarnation:
            with contextlib.suppress(queue.Empty):
                found.append(self.outbox.get(timeout=1.0))
                while True:
                    found.append(self.outbox.get_nowait())
        return self.incarnation, found

    def deliver(self, sender: int, kind: int, version: int, rows: Any) -> None:
        """A letter for this part."""
        self.mail.put(sender, Kind(kind), version, rows)

    def lay_aside(self, part: int, version: int, states: list[Any]) -> None:
        """The kept state of the part before this one."""
        self.mail.held_for_others[part] = (version, states)

    def laid_aside(self, part: int) -> Any:
        """Give it back."""
        return self.mail.held_for_others.get(part)


class _RayMail:
    """Letters between actors. One is under way to each reader; of those that wait, the newest."""

    lossy = True

    def __init__(self, ray: Any, part: int, count: int, job: str, news: threading.Event) -> None:
        self.ray, self.part, self.count, self.job, self.news = ray, part, count, job, news
        self.letters: dict[tuple[int, Kind], tuple[int, Tensor]] = {}
        self.held_for_others: dict[int, tuple[int, list[Any]]] = {}
        self.actors: dict[int, Any] = {}
        self.under_way: dict[tuple[str, int, int], Any] = {}
        self.next: dict[tuple[str, int, int], tuple[Any, ...]] = {}

    def put(self, sender: int, kind: Kind, version: int, rows: Any) -> None:
        """Called by the actor's other threads: one assignment, so nothing can be seen half."""
        known = self.letters.get((sender, kind))
        if known is None or version >= known[0]:
            self.letters[sender, kind] = (version, torch.from_numpy(rows.copy()))
            self.news.set()

    def _actor(self, part: int) -> Any:
        if part not in self.actors:
            self.actors[part] = self.ray.get_actor(f"{self.job}-{part}", namespace=self.job)
        return self.actors[part]

    def _post(self, method: str, to: int, tag: int, *content: Any) -> None:
        key = (method, to, tag)
        busy = self.under_way.get(key)
        if busy is not None and not self.ray.wait([busy], timeout=0)[0]:
            self.next[key] = content
            return
        self.next.pop(key, None)
        # not made yet, or not any more
        with contextlib.suppress(ValueError, self.ray.exceptions.RayActorError):
            call = getattr(self._actor(to), method).options(concurrency_group="letters")
            self.under_way[key] = call.remote(*content)

    def send(self, to: int, kind: Kind, version: int, rows: Tensor) -> None:
        """One way."""
        self._post("deliver", to, int(kind), self.part, int(kind), version, rows.detach().numpy())

    def newest(self, sender: int, kind: Kind) -> tuple[int, Tensor] | None:
        """What has come."""
        return self.letters.get((sender, kind))

    def keep(self, version: int, *states: Tensor) -> None:
        """With the next part's actor."""
        if self.count > 1:
            copies = [state.detach().numpy().copy() for state in states]
            self._post("lay_aside", (self.part + 1) % self.count, -1, self.part, version, copies)

    def kept(self) -> tuple[int, list[Tensor]] | None:
        """From the next part's actor, if it lives."""
        if self.count == 1:
            return None
        with contextlib.suppress(Exception):
            call = self._actor((self.part + 1) % self.count).laid_aside.options(
                concurrency_group="letters"
            )
            found = self.ray.get(call.remote(self.part), timeout=10)
            if found is not None:
                return found[0], [torch.from_numpy(state.copy()) for state in found[1]]
        return None

    def tick(self) -> None:
        """Send what had to wait."""
        for (method, to, tag), content in list(self.next.items()):
            self._post(method, to, tag, *content)
