"""Figures from records.

Records read: ``*.json`` below the results folder, told apart by their schema (diagnoses, staleness
studies, certificates), and run records. Runs that became non-finite are in the records and are
never part of a median.
"""

from sheafdeq.report.figures.kinds import draw_all as draw_all
from sheafdeq.report.figures.picture import (
    FORMATS as FORMATS,
)
from sheafdeq.report.figures.picture import (
    Drawing as Drawing,
)
from sheafdeq.report.figures.picture import (
    write_drawings as write_drawings,
)
from sheafdeq.report.figures.source import (
    Source as Source,
)
from sheafdeq.report.figures.source import (
    check_sources as check_sources,
)
from sheafdeq.report.figures.source import (
    read_sources as read_sources,
)
