"""Tables from records, with the paper's number beside ours.

Numbers come from two places only: run records and the paper's figures in ``report/paper``. A table
is a list of rows of plain cells (``table.py``); ``render.py`` writes it in every format.
"""

from sheafdeq.report.tables.overview_table import overview_table as overview_table
from sheafdeq.report.tables.paper import (
    PAPER_SEEDS as PAPER_SEEDS,
)
from sheafdeq.report.tables.paper import (
    paper_numbers as paper_numbers,
)
from sheafdeq.report.tables.paper_table import judged as judged
from sheafdeq.report.tables.paper_table import paper_table as paper_table
from sheafdeq.report.tables.parameter_table import parameter_table as parameter_table
from sheafdeq.report.tables.predictions_table import predictions_table as predictions_table
from sheafdeq.report.tables.real_table import SplitCell as SplitCell
from sheafdeq.report.tables.real_table import published_numbers as published_numbers
from sheafdeq.report.tables.real_table import real_table as real_table
from sheafdeq.report.tables.render import FORMATS as FORMATS
from sheafdeq.report.tables.render import grid as grid
from sheafdeq.report.tables.render import render as render
from sheafdeq.report.tables.staleness_table import staleness_table as staleness_table
from sheafdeq.report.tables.table import (
    Cell as Cell,
)
from sheafdeq.report.tables.table import (
    Row as Row,
)
from sheafdeq.report.tables.table import (
    Select as Select,
)
from sheafdeq.report.tables.table import (
    Table as Table,
)
from sheafdeq.report.tables.table import (
    only_columns as only_columns,
)
from sheafdeq.report.tables.table import (
    rank as rank,
)
