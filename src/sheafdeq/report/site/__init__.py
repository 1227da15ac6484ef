"""The report: a folder of pages that opens from disk, made from records alone.

    build_site(collection, out, ...)    overview, a page for each run, compare

Text from records reaches a page only through autoescaped templates or as JSON that scripts show
with ``textContent``; a content security policy forbids inline scripts and every foreign host. Needs
Jinja2 (``pip install sheafdeq[report]``).
"""

from sheafdeq.report.site.build import Site, build_site, prepare_folder

__all__ = ["Site", "build_site", "prepare_folder"]
