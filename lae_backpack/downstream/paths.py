"""Ways along data, as first guesses of shortest paths."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.no_grad()
def way_by_neighbours(
    a: Tensor,
    b: Tensor,
    codes: Tensor,
    length: Callable[[Tensor], Tensor],
    n_neighbours: int = 8,
    n_parts: int = 4,
) -> Tensor:
    """The shortest way from neighbour to neighbour.

    Args:
        a: Where it starts.  # [K]
        b: Where it ends.  # [K]
        codes: Where it may go by.  # [C, K]
        length: Measures curves.  # [B, T, K] -> [B]
        n_neighbours: Neighbours that a code is joined with, by straight lines.
        n_parts: Parts that each of these is measured in.

    Returns:
        The way, from ``a`` to ``b``.  # [T, K]
    """
    import networkx  # stochman has it

    nodes = torch.cat((torch.stack((a, b)), codes.to(a)))
    k = min(n_neighbours, len(nodes) - 1)
    near = torch.cdist(nodes, nodes).topk(k + 1, largest=False)[1][:, 1:]  # not itself
    own = torch.arange(len(nodes), device=near.device)[:, None].expand_as(near)
    pairs = torch.stack((own, near), -1).flatten(0, 1)
    # The straight line too, so that there is always a way.
    ends = torch.tensor([[0, 1]], device=pairs.device)
    pairs = torch.cat((pairs, ends)).sort(1)[0].unique(dim=0)
    times = torch.linspace(0, 1, n_parts + 1, dtype=a.dtype, device=a.device)[:, None]
    lines = torch.lerp(nodes[pairs[:, :1]], nodes[pairs[:, 1:]], times)  # [E, T, K]
    graph = networkx.Graph()
    measured = zip(pairs.tolist(), length(lines).tolist(), strict=True)
    graph.add_weighted_edges_from((i, j, weight) for (i, j), weight in measured)
    return nodes[networkx.dijkstra_path(graph, 0, 1)]
