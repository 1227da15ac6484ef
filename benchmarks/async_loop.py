"""The simulator against a straightforward loop over nodes, on the 1,500-node community graph.

    python benchmarks/async_loop.py [--threads 2] [--samples 20] [--work 500] [--json]

Times, for an untrained SheafDEQ of the paper's size (the cost does not depend on the weights):

* ``loop``: one schedule, one node at a time, each reading its own stale view through ``local_step``
  on its own edges. It is timed on a few slots and scaled to the whole run, since the whole run
  would take hours;
* ``one by one``: the simulator, one schedule at a time;
* ``together``: the simulator as ``sheafdeq async`` uses it.

A run that has come to rest exactly stops early; ``together`` is scaled to the full work, so that
this does not flatter it. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from sheafdeq.asynchronous import Schedule, simulate_many
from sheafdeq.data.community import community_graph
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.recurrence import restrict


def node_loop(model, context, schedule, slots):
    """Seconds and updates of the plain loop over the first ``slots`` slots."""
    incidence = context.edges
    history = [model.initial_state(context)]
    parts = {}
    updates, begun = 0, time.perf_counter()
    for slot in schedule.slots(incidence):
        if slot.time == slots:
            break
        state, position = history[-1].clone(), 0
        for node in slot.active.tolist():
            if node not in parts:
                parts[node] = restrict(context, torch.tensor([node]))
            alone, edges = parts[node]
            sources = incidence.source[edges].tolist()
            delays = slot.delay[position : position + len(sources)].tolist()
            position += len(sources)
            received = torch.stack(
                [
                    history[slot.time - delay][source]
                    for source, delay in zip(sources, delays, strict=True)
                ]
            )
            state[node] = model.local_step(history[-1][node : node + 1], received, alone)[0]
            updates += 1
        history.append(state)
    return time.perf_counter() - begun, updates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--work", type=float, default=500)
    parser.add_argument(
        "--loop-slots", type=int, default=5, help="slots of the plain loop that are timed"
    )
    parser.add_argument(
        "--single-work", type=float, default=25, help="work of the one-by-one run that is timed"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    graph, _ = community_graph(100, level=7)
    model = SheafDEQ(2, 3).eval()
    n = graph.num_nodes
    results = []
    with torch.no_grad():
        context = model.prepare(graph)
        for window, delay in ((2, 1), (5, 2), (8, 4)):
            schedules = [Schedule(window, delay, seed) for seed in range(options.samples)]
            seconds, updates = node_loop(model, context, schedules[0], options.loop_slots)
            loop = seconds / updates * n * options.work * options.samples
            begun = time.perf_counter()
            (single,) = simulate_many(model, graph, schedules[:1], work=options.single_work)
            alone = (time.perf_counter() - begun) / single.work * options.work * options.samples
            begun = time.perf_counter()
            runs = simulate_many(model, graph, schedules, work=options.work)
            spent = time.perf_counter() - begun
            done = sum(run.work for run in runs) / len(runs)
            results.append(
                {
                    "schedule": [window, delay],
                    "loop_seconds_extrapolated": round(loop, 1),
                    "one_by_one_seconds_extrapolated": round(alone, 1),
                    "together_seconds": round(spent, 1),
                    "mean_work_computed": round(done, 1),
                    "together_seconds_at_full_work": round(spent / done * options.work, 1),
                }
            )
            if not options.json:
                print(results[-1], flush=True)
    if options.json:
        facts = {
            "nodes": n,
            "edges": graph.num_edges,
            **vars(options),
            "torch": torch.__version__,
            "results": results,
        }
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
