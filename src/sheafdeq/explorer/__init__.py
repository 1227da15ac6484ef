"""The explorer: a graph on the screen while a model iterates, as one page that opens from disk.

    film(...), film_late(...)   what every node did in every iteration, synchronously or with late
        messages
    layouts(...)                  where the nodes are drawn, computed once
    write_page(scene, films, out) the page: films quantised and compressed, nothing asked of any
        other host

Needs Jinja2 (``pip install sheafdeq[report]``).
"""

from sheafdeq.explorer.film import Actor, Film, Scene, film, film_late
from sheafdeq.explorer.layout import layouts
from sheafdeq.explorer.page import LIMIT, explore, write_page

__all__ = [
    "LIMIT",
    "Actor",
    "Film",
    "Scene",
    "explore",
    "film",
    "film_late",
    "layouts",
    "write_page",
]
