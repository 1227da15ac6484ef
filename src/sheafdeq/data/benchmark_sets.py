"""The published graphs: where each comes from, how it is read, and what it must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sheafdeq.data.files import manifest
from sheafdeq.data.raw_formats import (
    Arrays,
    parse_geom_gcn,
    parse_heterophilous,
    parse_planetoid,
    parse_tu,
)

__all__ = ["GRAPH_SETS", "NODE_SETS", "DataSource"]


@dataclass(frozen=True)
class DataSource:
    """Where one data set comes from and how it is read."""

    name: str
    folder: str
    parse: Callable[[dict[str, bytes], str], Arrays]
    licence: str
    nodes: int
    stored_edges: int
    summary: str
    graphs: int = 1
    metric: str = "accuracy"
    remarks: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Its files below the data root."""
        single = self.folder.endswith(".npz")
        return [
            path
            for path in manifest()
            if (path == self.folder if single else path.startswith(f"{self.folder}/"))
        ]


_PLANETOID = "MIT (kimiyoung/planetoid); splits of Geom-GCN: none stated"

_GEOM_GCN = "none stated (Geom-GCN asks to cite the original data)"

_PLATONOV = "MIT (yandex-research/heterophilous-graphs)"

_TU = "none stated (TUDataset collection)"

_DUPLICATES = (
    "holds duplicate nodes that leak from train to test (Platonov et al. 2023): prefer "
    "the filtered version",
)

_IMBALANCED = ("two classes of unequal size: scored by ROC-AUC",)

NODE_SETS = {
    source.name: source
    for source in [
        DataSource(
            "cora",
            "planetoid/Cora",
            parse_planetoid,
            _PLANETOID,
            2708,
            10556,
            "citations, 7 topics",
        ),
        DataSource(
            "citeseer",
            "planetoid/CiteSeer",
            parse_planetoid,
            _PLANETOID,
            3327,
            9104,
            "citations, 6 topics",
        ),
        DataSource(
            "pubmed",
            "planetoid/PubMed",
            parse_planetoid,
            _PLANETOID,
            19717,
            88648,
            "citations, 3 topics",
        ),
        *(
            DataSource(
                name,
                f"webkb/{name}",
                partial(parse_geom_gcn, prefix=name),
                _GEOM_GCN,
                nodes,
                edges,
                "web pages of one university, 5 kinds",
                remarks=("tiny: expect large variance over splits",),
            )
            for name, nodes, edges in (
                ("texas", 183, 558),
                ("wisconsin", 251, 900),
                ("cornell", 183, 554),
            )
        ),
        DataSource(
            "actor",
            "actor",
            partial(parse_geom_gcn, prefix="film", indexed=True),
            _GEOM_GCN,
            7600,
            53318,
            "actors on the same page, 5 kinds",
        ),
        DataSource(
            "chameleon",
            "wikipedia/chameleon/geom_gcn",
            partial(parse_geom_gcn, prefix="chameleon"),
            _GEOM_GCN,
            2277,
            62742,
            "Wikipedia pages, 5 traffic classes",
            remarks=_DUPLICATES,
        ),
        DataSource(
            "squirrel",
            "wikipedia/squirrel/geom_gcn",
            partial(parse_geom_gcn, prefix="squirrel"),
            _GEOM_GCN,
            5201,
            396706,
            "Wikipedia pages, 5 traffic classes",
            remarks=_DUPLICATES,
        ),
        DataSource(
            "chameleon-filtered",
            "heterophilous_filtered/chameleon_filtered.npz",
            parse_heterophilous,
            _PLATONOV,
            890,
            17708,
            "Chameleon without duplicate nodes",
        ),
        DataSource(
            "squirrel-filtered",
            "heterophilous_filtered/squirrel_filtered.npz",
            parse_heterophilous,
            _PLATONOV,
            2223,
            93996,
            "Squirrel without duplicate nodes",
        ),
        DataSource(
            "minesweeper",
            "heterophilous/minesweeper/raw/minesweeper.npz",
            parse_heterophilous,
            _PLATONOV,
            10000,
            78804,
            "find the mines on a 100 x 100 board",
            metric="roc_auc",
            remarks=_IMBALANCED,
        ),
        DataSource(
            "tolokers",
            "heterophilous/tolokers/raw/tolokers.npz",
            parse_heterophilous,
            _PLATONOV,
            11758,
            1038000,
            "crowd workers, banned or not",
            metric="roc_auc",
            remarks=_IMBALANCED,
        ),
    ]
}

GRAPH_SETS = {
    source.name: source
    for source in [
        DataSource(
            "mutag",
            "tu/MUTAG",
            parse_tu,
            _TU,
            3371,
            7442,
            "molecules, mutagenic or not",
            graphs=188,
        ),
        DataSource(
            "proteins",
            "tu/PROTEINS",
            parse_tu,
            _TU,
            43471,
            162088,
            "proteins, enzyme or not",
            graphs=1113,
        ),
    ]
}
