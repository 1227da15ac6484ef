"""The explorer in a browser: play, pause, slider, colours, models, a node; and how fast it
draws."""

import numpy as np
import pytest
import torch

from browser.conftest import eventually, expect, until
from sheafdeq.data.graph import Graph
from sheafdeq.explorer import Film, Scene, write_page


def ready(page):
    page.wait_for_selector("body[data-ready=yes]", timeout=60_000)
    return page


def picture(page, side="left"):
    return page.evaluate(f"document.getElementById('{side}-canvas').toDataURL()")


def when(page):
    return int(page.locator("#time").input_value())


def test_play_pause_and_slider(watched, explorer):
    page = ready(watched.open(explorer))
    expect(page.locator("h1")).to_have_text("a ring & <b>chords</b>")
    assert eventually(page, lambda: when(page) == 0)
    before = picture(page)
    page.select_option("#speed", "5")  # slow enough not to end before it is stopped
    page.locator("#play").click()
    until(page, "Number(document.getElementById('time').value) > 1")
    page.locator("#play").click()
    expect(page.locator("#play")).to_have_text("Play")
    stopped = when(page)
    page.wait_for_timeout(300)
    assert when(page) == stopped
    assert eventually(page, lambda: picture(page) != before)
    page.locator("#time").fill("7")
    expect(page.locator("#when")).to_have_text("iteration 7 of 30")
    page.locator("#next").click()
    assert eventually(page, lambda: when(page) == 8)
    page.locator("#previous").click()
    assert eventually(page, lambda: when(page) == 7)
    expect(page.locator("#left-facts")).to_contain_text("accuracy (%)")


def test_playing_ends_at_the_last_iteration_and_begins_again(watched, explorer):
    page = ready(watched.open(explorer))
    page.locator("#time").fill("28")
    page.locator("#play").click()
    until(page, "document.getElementById('play').textContent === 'Play'")
    assert eventually(page, lambda: when(page) == 30)
    page.locator("#play").click()
    assert eventually(page, lambda: when(page) < 20)
    page.locator("#play").click()


def test_the_keyboard_plays(watched, explorer):
    page = ready(watched.open(explorer))
    page.select_option("#speed", "5")
    page.locator("#left-canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert eventually(page, lambda: when(page) == 2)
    page.keyboard.press("ArrowLeft")
    assert eventually(page, lambda: when(page) == 1)
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("Pause")
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("Play")


def test_colours_layouts_and_edges(watched, explorer):
    page = ready(watched.open(explorer))
    page.locator("#time").fill("5")
    seen = set()
    for colour in ("class", "prediction", "residual", "disagreement"):
        page.select_option("#colour", colour)
        seen.add(picture(page))
    assert len(seen) == 4
    before = picture(page)
    page.select_option("#layout", "1")
    page.wait_for_timeout(100)
    assert eventually(page, lambda: picture(page) != before)
    before = picture(page)
    page.locator("#edges").uncheck()
    assert eventually(page, lambda: picture(page) != before)


def test_models_starts_and_late_messages_side_by_side(watched, explorer):
    page = ready(watched.open(explorer))
    names = page.locator("#presets button").all_inner_texts()
    assert names[0] == "Two models"
    expect(page.locator("#right-title")).to_have_text("Sheaf Cascade, default start")
    page.locator("#presets button", has_text="Two starts: SheafDEQ").click()
    until(page, "document.getElementById('right-title').textContent.includes('scale 10')")
    page.locator("#presets button", has_text="Late messages: SheafDEQ").click()
    until(
        page, "document.getElementById('right-title').textContent.includes('late messages (3, 2)')"
    )
    page.locator("#time").fill("9")
    expect(page.locator("#right-facts")).to_contain_text("late messages")
    with_messages = picture(page, "right")
    page.locator("#late").uncheck()
    assert eventually(page, lambda: picture(page, "right") != with_messages)
    page.select_option("#right", "-1")
    until(page, "document.getElementById('panels').classList.contains('single')")
    assert eventually(page, lambda: page.locator("#right-canvas").is_hidden())


def test_a_click_on_a_node_shows_state_neighbours_and_maps(watched, explorer):
    page = ready(watched.open(explorer))
    page.locator("#time").fill("4")
    box = page.locator("#left-canvas").bounding_box()
    found = False
    for x in np.linspace(0.2, 0.8, 25):  # somewhere along the middle there is a node
        page.mouse.click(box["x"] + x * box["width"], box["y"] + 0.35 * box["height"])
        if page.locator("#detail table").count():
            found = True
            break
    assert found
    title = page.locator("#node-title").inner_text()
    assert "6 neighbours" in title
    detail = page.locator("#detail")
    assert (
        detail.locator("canvas.heat").first.get_attribute("aria-label").startswith("state of node")
    )
    assert eventually(page, lambda: "iteration 4" in detail.inner_text().lower())
    assert eventually(page, lambda: detail.locator("table").first.locator("tbody tr").count() == 6)
    # source and target map of six edges
    assert eventually(
        page, lambda: detail.locator("table").first.locator(".matrices canvas").count() == 12
    )
    before = detail.inner_html()
    page.locator("#time").fill("12")
    assert eventually(page, lambda: detail.inner_html() != before)
    detail.locator("table button").first.click()
    assert eventually(page, lambda: page.locator("#node-title").inner_text() != title)


def test_a_node_by_its_number(watched, explorer):
    page = ready(watched.open(explorer))
    page.locator("#node").fill("5")
    page.locator("#node").press("Enter")
    assert eventually(
        page, lambda: page.locator("#node-title").inner_text().startswith("Node 5, class 2")
    )
    page.evaluate(
        "document.getElementById('node').value = '99'; "
        "document.getElementById('pick').requestSubmit = null"
    )
    page.evaluate("document.getElementById('pick').noValidate = true")
    page.locator("#pick button").click()
    expect(page.locator("#detail")).to_contain_text("There is no node 99")


def test_wheel_and_drag_move_the_graph(watched, explorer):
    page = ready(watched.open(explorer))
    before = picture(page)
    box = page.locator("#left-canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.wheel(0, -300)
    assert eventually(page, lambda: picture(page) != before)
    zoomed = picture(page)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 150, steps=4)
    page.mouse.up()
    assert eventually(page, lambda: picture(page) != zoomed)
    page.locator("#home").click()
    assert eventually(page, lambda: picture(page) == before)


@pytest.mark.slow
def test_fifteen_hundred_nodes_and_five_hundred_iterations(watched, tmp_path):
    """30 frames a second with software rendering, or the page says why not. The numbers are noise:
    the worst case."""
    n, frames, degree = 1500, 501, 5
    draw = np.random.default_rng(0)
    nodes = torch.arange(n)
    index = torch.cat(
        [torch.stack([nodes, torch.from_numpy(draw.permutation(n))]) for _ in range(degree)], dim=1
    )
    index = index[:, index[0] != index[1]]
    graph = Graph.build(torch.randn(n, 2), torch.cat([index, index.flip(0)], dim=1))
    scene = Scene("speed", graph, nodes % 3, 3, "accuracy (%)")

    def noise(kind):
        walk = draw.normal(size=(frames, n)).astype(np.float32).cumsum(0)
        film = Film(
            kind,
            "noise",
            kind,
            20,
            (np.abs(walk) % 3).astype(np.uint8),
            np.exp(walk / 10),
            np.abs(np.sin(walk)),
            [None] * frames,
            [0, frames - 1],
            draw.normal(size=(2, n, 48)).astype(np.float32),
            shape=(1, 3, 16),
        )
        if kind == "late":
            film.delays = draw.integers(0, 4, size=(frames - 1, graph.num_edges)).astype(np.uint8)
        return film

    path = write_page(scene, [noise("default"), noise("late")], tmp_path / "page.html")
    assert path.stat().st_size < 5_000_000
    page = ready(watched.open(path))
    page.select_option("#speed", "60")
    page.locator("#play").click()
    until(page, "document.getElementById('rate').textContent.includes('frames a second')")
    page.wait_for_timeout(3000)
    said = page.locator("#rate").inner_text()
    print(said)
    frames_a_second = float(said.split()[0])
    assert frames_a_second >= 30 or (
        "fewer than 30: drawing takes" in said and "1,500 nodes" in said
    )
