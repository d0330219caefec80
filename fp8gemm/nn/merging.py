"""For `torch.compile`: layers that share an input quantise it once.

The query, key and value projections of an attention layer read the same activations, as do the gate and up projections
behind it, and torch's compiler does not merge equal operators on its own (torch 2.13, 2026-11-22).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node


class MergeQuantization(CustomGraphPass):
    """Keeps one of several `fp8gemm.ops` quantise operators that have the same arguments.

    It may go over a graph that mutates nothing before its end, which Inductor's is ahead of its own last passes.
    """

    def __call__(self, graph: Graph) -> None:
        """Merge in place."""
        first: dict[tuple[Any, str], Node] = {}
        for node in list(graph.nodes):
            if node.op != "call_function" or not _is_merged(node.target):
                continue
            # NOTE: as text, because lists of sizes do not hash; the names of nodes are unique in their graph.
            key = node.target, f"{node.args} {node.kwargs}"
            if key in first:
                node.replace_all_uses_with(first[key])
                graph.erase_node(node)
            else:
                first[key] = node

    def uuid(self) -> Any:
        """For Inductor's cache: this file's content."""
        return get_hash_for_files((__file__,))


def _is_merged(target: Any) -> bool:
    """Whether it is an operator that quantises, or one that only looks at its input's or its result's memory."""
    views = (torch.ops.aten.view.default, torch.ops.aten.reshape.default, operator.getitem)
    return target in views or str(target).startswith("fp8gemm.quantize") and str(target).endswith(".default")
