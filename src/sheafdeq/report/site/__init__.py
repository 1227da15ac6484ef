"""The report: a folder of pages that opens from disk, made from records alone.

    collect(folders)                    run records and studies, and the files that cannot be trusted
    build_site(collection, out, ...)    overview, a page for each run, compare

Text from records reaches a page only through autoescaped templates or as JSON that scripts show with ``textContent``; a
content security policy forbids inline scripts and every foreign host. Needs Jinja2 (``pip install sheafdeq[report]``).
"""

from sheafdeq.report.site.build import Site, build_site, prepare_folder
from sheafdeq.report.site.collect import Collection, Damage, StoredRun, Study, collect

__all__ = ["Collection", "Damage", "Site", "StoredRun", "Study", "build_site", "collect", "prepare_folder"]
