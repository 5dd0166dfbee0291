"""What HopGNN reports, as its text and tables say (figures read off plots are not among it)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from benchmarks.paper.experiment import Published

_PUBLISHED: Final = MappingProxyType(
    {
        "table1": (
            ("Table 1", "R_micro, node-wise, 2 to 16 servers, Arxiv, two layers", "75 to 59 %"),
            ("Table 1", "the same, ten layers", "73 to 27 %"),
            ("Table 1", "R_micro, node-wise, 2 to 16 servers, Products, two layers", "95 to 86 %"),
            ("Table 1", "the same, ten layers", "88 to 61 %"),
            ("Table 1", "R_micro, node-wise, 2 to 16 servers, IT, two layers", "66 to 46 %"),
            ("Table 1", "the same, ten layers", "64 to 32 %"),
            ("Table 1", "mean R_sub with 2, 4, 8, 16 servers", "50, 25, 12, 6 %"),
            ("section 4", "R_micro over R_sub, 2 to 16 servers", "1.59 to 10.60 x"),
        ),
        "bottleneck": (
            ("section 3.1", "share of gathering remote features in training time", "44 to 83 %"),
            ("section 3.1", "sampling and computation together, average", "11 %"),
            ("section 3.1", "features moved in an epoch, GAT on Products", "35 GB"),
            ("section 3.1", "topology moved in the same epoch", "0.4 GB"),
        ),
        "alpha": (
            ("section 3.1", "alpha over models and numbers of layers", "13.4 to 2368.1"),
            ("section 3.1", "alpha of DeeperGCN with 112 layers", "2368.1"),
        ),
        "fig7": (
            ("section 3.2, Figure 7", "bytes of Naive over model-centric, up to", "2.59 x"),
        ),
        "fig11": (
            ("section 7.2, Figures 11 and 12", "HopGNN over DGL", "1.3 to 3.1 x"),
            ("section 7.2, Figures 11 and 12", "HopGNN over P3", "1.2 to 4.2 x"),
            ("section 7.2", "GCN on Products, HopGNN over DGL", "2.5 x"),
            ("section 7.2", "GAT on Products, HopGNN over DGL", "2.2 x"),
            ("section 7.2", "GAT(128) on IN, HopGNN over DGL", "1.8 x"),
        ),
        "fig12": (
            ("section 7.2, Figures 11 and 12", "HopGNN over DGL, all five models", "1.3 to 3.1 x"),
            ("section 7.2, Figures 11 and 12", "HopGNN over P3, all five models", "1.2 to 4.2 x"),
            ("section 7.1", "layers of DeepGCN and GNN-FiLM", "7 and 10"),
        ),
        "fig13": (
            ("section 7.3, Figure 13", "GAT on Products, +MG over DGL, up to", "1.69 x"),
            ("section 7.3, Figure 13", "GAT on Products, +PG over DGL, up to", "1.92 x"),
            ("section 7.3, Figure 13", "GAT on Products, All over DGL, up to", "2.14 x"),
            ("section 7.3, Figure 13", "GAT on UK, +MG over DGL, up to", "1.96 x"),
            ("section 7.3, Figure 13", "GAT on UK, +PG over DGL, up to", "2.33 x"),
            ("section 7.3, Figure 13", "GAT on UK, All over DGL, up to", "2.72 x"),
            ("section 7.3", "average gain of +MG, +PG, merging", "74, 11, 15 %"),
            ("section 7.3", "+MG on Products, on UK, average", "1.52 x, 2.13 x"),
        ),
        "missrate": (
            ("section 7.3", "average miss rate before and after +MG", "76.5 to 23.3 %"),
            ("section 7.3", "remote gathering time on Products, +MG, average", "2.3 x less"),
            ("section 7.3", "remote feature requests, +PG", "1.9 x less"),
            ("section 7.3", "local feature miss requests, +PG", "1.4 x less"),
            ("section 5.2", "temporary features, GAT on Products, model-centric", "530 MB"),
            ("section 5.2", "temporary features, GAT on Products, pre-gathering", "87 MB"),
        ),
        "fig17": (
            ("section 7.3, Figure 17", "GAT on Products, time steps of epochs 0, 1, 2", "4, 3, 2"),
            ("section 7.3, Figure 17", "time steps of the epochs after these", "3"),
        ),
        "fig18": (
            ("section 7.4, Figure 18(a)", "fewest over random, IN and Products", "1.4 to 1.9 x"),
            ("section 7.4, Figure 18(b)", "models on a server and step under random", "uneven"),
        ),
        "large": (
            ("section 7.5", "HopGNN over DGL on IT, average", "1.91 x"),
            ("section 7.5", "HopGNN over P3 on IT, average", "1.48 x"),
            ("section 7.5", "local hit rate before and after", "24.4 to 92.3 %"),
        ),
        "gpu-util": (
            ("section 7.6", "time in which the GPU is busy: HopGNN", "52 %"),
            ("section 7.6", "time in which the GPU is busy: DGL, P3", "13 %, 18 %"),
            ("section 7.6", "peak utilisation of all systems", "below 20 %"),
        ),
        "fig21": (
            ("section 7.7, Figure 21", "HopGNN over NeutronStar, full batches", "1.05 to 1.82 x"),
        ),
        "fig22a": (
            ("section 7.8, Figure 22(a)", "HopGNN over DGL, batches of 512 to 16K", "2.2 to 2.8 x"),
        ),
        "fig22b": (
            ("section 7.8, Figure 22(b)", "HopGNN over DGL, from narrow to wide", "2.1 to 2.9 x"),
            ("section 7.8", "share of remote gathering in DGL's time", "36.8 to 72.0 %"),
        ),
        "fig23a": (
            ("section 7.8, Figure 23(a)", "HopGNN over DGL, average of fanouts", "2.3 x"),
            ("section 7.8, Figure 23(a)", "HopGNN's time, fanout 5 to 40", "5.3 x more"),
            ("section 7.8, Figure 23(a)", "DGL's time, fanout 5 to 40", "6.6 x more"),
        ),
        "fig23b": (
            ("section 7.8, Figure 23(b)", "HopGNN over DGL, average of 2 to 6 machines", "2.27 x"),
            ("section 7.8, Figure 23(b)", "HopGNN over DGL, 2 to 6 machines", "1.69 to 2.55 x"),
        ),
        "table3": (
            ("Table 3", "Arxiv, GCN: DGL, LO, HopGNN", "60.24, 59.71, 60.24 %"),
            ("Table 3", "Arxiv, SAGE: DGL, LO, HopGNN", "61.96, 61.96, 61.98 %"),
            ("Table 3", "Arxiv, GAT: DGL, LO, HopGNN", "59.28, 59.15, 59.25 %"),
        ),
    }
)  # fmt: skip


def list_published(name: str) -> tuple[Published, ...]:
    """Return what the paper reports of an experiment."""
    return tuple(Published(*figure) for figure in _PUBLISHED[name])
