"""The explorer without a browser: films are the model's own iterates, layouts are drawn once, pages
are small and inert."""

import json
import re

import numpy as np
import pytest
import torch

from sheafdeq import SheafDEQ
from sheafdeq.asynchronous import Schedule, simulate
from sheafdeq.cli import main
from sheafdeq.data.graph import Graph
from sheafdeq.diagnostics import random_start
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.errors import InputError
from sheafdeq.explorer import Actor, Scene, explore, film, film_late, layouts, write_page
from sheafdeq.explorer.encode import (
    linear_levels,
    packed,
    packed_over_time,
    residual_levels,
    unpacked,
)
from sheafdeq.explorer.film import edge_matrices, key_frames
from sheafdeq.explorer.layout import by_class, by_edges
from sheafdeq.models import SheafCascade


def small_graph(n=12, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ring = torch.arange(n)
    pairs = torch.stack([ring, (ring + 1) % n])
    more = torch.randint(0, n, (2, n), generator=draw)
    index = torch.cat([pairs, more[:, more[0] != more[1]]], dim=1)
    index = torch.unique(torch.cat([index, index.flip(0)], dim=1), dim=1)
    return Graph.build(torch.randn(n, 2, generator=draw), index)


@pytest.fixture
def scene():
    graph = small_graph()
    return Scene("a <small> graph", graph, torch.arange(graph.num_nodes) % 3, 3, "accuracy (%)")


@pytest.fixture
def actor():
    return Actor("SheafDEQ", SheafDEQ(2, 3, 2, 4, steps=5), lambda outputs: float(outputs.mean()))


def test_a_film_shows_the_models_own_iterates(scene, actor):
    shot = film(scene, actor, iterations=9, keep=100)
    model = actor.model.eval()
    context = model.prepare(scene.graph)
    state = model.initial_state(context)
    with torch.no_grad():
        for k in range(10):
            assert torch.equal(torch.from_numpy(shot.states[k]), state)
            image = model.step(state, context)
            outputs = model.readout(state, context)
            np.testing.assert_array_equal(shot.prediction[k], outputs.argmax(1).numpy())
            np.testing.assert_allclose(
                shot.residual[k], RELATIVE_SUP(image, state).numpy(), rtol=1e-6
            )
            assert shot.score[k] == pytest.approx(float(outputs.mean()), rel=1e-4)
            state = image
    assert shot.frames == list(range(10))
    assert shot.shape == (1, 2, 4)


def test_matrices_are_the_restriction_maps(scene, actor):
    shot = film(scene, actor, iterations=3)
    model = actor.model.eval()
    context = model.prepare(scene.graph)
    with torch.no_grad():
        operator = model.operator(torch.from_numpy(shot.states[2]), context)
    np.testing.assert_array_equal(shot.matrices[2][:, 0], operator.source_maps.numpy())
    np.testing.assert_array_equal(shot.matrices[2][:, 1], operator.target_maps.numpy())
    assert shot.matrix_names == ("source map", "target map")


def test_a_random_start_is_the_diagnostics_start(scene, actor):
    shot = film(scene, actor, iterations=2, scale=10.0, seed=3)
    expected = random_start(torch.zeros(scene.graph.num_nodes, 8), 10.0, 3)
    assert torch.equal(torch.from_numpy(shot.states[0]), expected)


def test_late_messages_are_those_of_the_simulation(scene, actor):
    schedule = Schedule(3, 2, seed=5)
    shot = film_late(scene, actor, schedule, iterations=25, keep=100)
    incidence = actor.model.prepare(scene.graph).edges
    slots = []
    for slot in schedule.slots(incidence):
        slots.append(slot)
        if len(slots) == 25:
            break
    for t, slot in enumerate(slots):
        expected = np.zeros(len(incidence.source), dtype=np.uint8)
        expected[incidence.edges_into(slot.active).numpy()] = slot.delay.numpy() + 1
        np.testing.assert_array_equal(shot.delays[t], expected)
        if len(slot.active) < scene.graph.num_nodes:  # those who sleep do not move
            asleep = np.setdiff1d(np.arange(scene.graph.num_nodes), slot.active.numpy())
            np.testing.assert_array_equal(shot.states[t + 1][asleep], shot.states[t][asleep])
    work = sum(len(slot.active) for slot in slots) / scene.graph.num_nodes
    end = simulate(actor.model, scene.graph, schedule, work=work - 1e-9)
    np.testing.assert_allclose(shot.states[25], end.state.numpy(), rtol=1e-5)


def test_fresh_messages_give_the_synchronous_film(scene, actor):
    fresh = film_late(scene, actor, Schedule(1, 0), iterations=8)
    plain = film(scene, actor, iterations=8)
    np.testing.assert_array_equal(fresh.states, plain.states)
    assert set(np.unique(fresh.delays)) == {1}


def test_a_cascade_shows_its_last_level(scene):
    model = SheafCascade(2, 3, 2, 4, levels=3, level_steps=2)
    context = model.prepare(scene.graph)
    state = model.initial_state(context)
    names, matrices = edge_matrices(model, state, context)
    assert len(names) == 1
    assert matrices.shape == (scene.graph.num_edges, 1, 2, 2)
    shot = film(scene, Actor("cascade", model), iterations=40)
    assert shot.shape == (3, 2, 4)
    assert shot.residual[-1].max() < 1e-3  # it settles, and the film shows it


def test_a_state_that_leaves_all_bounds_ends_the_film(scene):
    class Runaway(SheafDEQ):
        def step(self, state, context):
            return state * 1e30

        def readout(self, state, context=None):  # type: ignore[override]
            return state[:, :3]

    model = SheafDEQ(2, 3, 2, 4)
    model.__class__ = Runaway
    del model._modules["readout"]
    shot = film(scene, Actor("runaway", model), iterations=10)
    assert "left all bounds" in shot.note
    assert shot.length == 11


def test_what_is_not_an_equilibrium_model_is_refused(scene):
    from sheafdeq.models import MLP

    with pytest.raises(InputError, match="feed-forward"):
        film(scene, Actor("MLP", MLP(2, 3)))
    with pytest.raises(InputError, match="at least 1"):
        film(scene, Actor("SheafDEQ", SheafDEQ(2, 3)), iterations=0)


# ---------------------------------------------------------------------- encoding


def test_packing_is_exact():
    values = np.random.default_rng(0).integers(0, 256, size=(7, 11), dtype=np.uint8)
    back = unpacked(packed_over_time(values)).reshape(7, 11).cumsum(0, dtype=np.uint8)
    np.testing.assert_array_equal(back, values)
    wide = np.arange(70000, dtype=np.uint32)
    np.testing.assert_array_equal(unpacked(packed(wide), "<u4"), wide)


def test_levels_are_monotone_and_bounded():
    residuals = np.array([0.0, 1e-12, 1e-8, 1e-4, 1.0, 10.0, 1e9])
    levels = residual_levels(residuals)
    assert levels[0] == levels[1] == levels[2] == 0
    assert levels[-1] == levels[-2] == 63
    assert (np.diff(levels.astype(int)) >= 0).all()
    assert linear_levels(np.array([-1.0, 0.5, 2.0]), 0, 1).tolist() == [0, 32, 63]
    assert linear_levels(np.array([3.0]), 3, 3).tolist() == [0]


def test_key_frames_are_dense_first_and_keep_both_ends():
    assert key_frames(5, 10) == [0, 1, 2, 3, 4]
    frames = key_frames(501, 48)
    assert len(frames) <= 48
    assert frames[0] == 0
    assert frames[-1] == 500
    assert frames[:20] == list(range(20))


# ---------------------------------------------------------------------- layouts


def test_layouts_fill_the_unit_square_and_repeat():
    graph = small_graph(60)
    args = (
        graph.source.numpy(),
        graph.target.numpy(),
        60,
        np.arange(60) % 3,
        graph.x.double().numpy(),
    )
    made = layouts(*args)
    assert set(made) == {"by class", "by the edges", "by the two features"}
    for name, points in made.items():
        assert points.shape == (60, 2)
        assert points.min() >= -1e-9
        assert points.max() <= 1 + 1e-9
        assert np.isfinite(points).all()
        np.testing.assert_array_equal(points, layouts(*args)[name])


def test_neighbours_are_drawn_near_one_another():
    n = 80
    ring = np.arange(n)
    points = by_edges(ring, (ring + 1) % n, n)
    along = np.linalg.norm(points - np.roll(points, -1, axis=0), axis=1).mean()
    across = np.linalg.norm(points - np.roll(points, n // 2, axis=0), axis=1).mean()
    assert along < across / 4


def test_odd_graphs_have_a_layout():
    none = np.zeros(0, dtype=np.int64)
    assert by_edges(none, none, 0).shape == (0, 2)
    assert by_edges(none, none, 1).tolist() == [[0.5, 0.5]]
    scattered = by_edges(none, none, 7)
    assert len(np.unique(scattered.round(6), axis=0)) == 7
    loops = np.array([0, 0, 1, 2])
    assert np.isfinite(by_edges(loops, loops, 3)).all()
    assert by_class(np.zeros(4, dtype=np.int64)).shape == (4, 2)


# ---------------------------------------------------------------------- the page


def page_data(text):
    return json.loads(
        re.search(
            r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
        ).group(1)
    )


def test_a_page_is_one_file_with_all_films(scene, actor, tmp_path):
    path = explore(scene, [actor], tmp_path / "page.html", iterations=12, schedule=Schedule(2, 1))
    text = path.read_text()
    data = page_data(text)
    assert [entry["kind"] for entry in data["films"]] == ["default", "start", "late"]
    assert "a &lt;small&gt; graph" in text
    assert "<small>" not in text.split("</style>")[1].split("<script")[0]
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text.split("<script")[0])
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    first = data["films"][0]
    states = unpacked(first["states"]["data"]).reshape(13, 12, 8).cumsum(0, dtype=np.uint8)
    shot = film(scene, actor, iterations=12)
    low, high = first["states"]["low"], first["states"]["high"]
    clipped = shot.states.clip(low, high)
    np.testing.assert_allclose(
        low + states / 63 * (high - low), clipped, atol=(high - low) / 126 + 1e-6
    )


def test_the_policy_admits_exactly_the_script_and_style_of_the_page(scene, actor, tmp_path):
    import base64
    import hashlib
    import html

    text = write_page(scene, [film(scene, actor, iterations=3)], tmp_path / "page.html").read_text()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1))
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    for part in (script, style):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
    assert "unsafe" not in policy


def test_a_page_keeps_its_limit_or_says_what_to_do(scene, actor, tmp_path):
    shots = [film(scene, actor, iterations=200)]
    wide = write_page(scene, shots, tmp_path / "wide.html", limit=200_000)
    narrow = write_page(scene, shots, tmp_path / "narrow.html", limit=64_000)
    assert wide.stat().st_size <= 200_000
    assert narrow.stat().st_size <= 64_000
    few, many = (page_data(path.read_text())["films"][0]["states"] for path in (narrow, wide))
    assert few is None or len(few["frames"]) < len(many["frames"])
    with pytest.raises(InputError, match="fewer iterations"):
        write_page(scene, shots, tmp_path / "none.html", limit=40_000)
    with pytest.raises(InputError, match="no film"):
        write_page(scene, [], tmp_path / "none.html")


def test_values_instead_of_classes(tmp_path):
    graph = small_graph()
    scene = Scene("values", graph, torch.linspace(-1, 1, graph.num_nodes), None, "r2")
    data = page_data(
        explore(
            scene, [Actor("m", SheafDEQ(2, 1, 2, 4))], tmp_path / "page.html", iterations=4
        ).read_text()
    )
    assert data["classes"] is None
    assert data["range"][0] < data["range"][1]


def test_the_command_refuses_a_wrong_schedule(capsys):
    from sheafdeq.cli.explore import schedule_from
    from sheafdeq.errors import UsageError

    assert schedule_from("5,2").window == 5
    with pytest.raises(UsageError, match="WINDOW,DELAY"):
        schedule_from("5")
    assert main(["explore", "no/such/run"]) == 2
    assert "no/such/run: neither a run directory" in capsys.readouterr().err
