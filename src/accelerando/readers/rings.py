"""Islands and rings in a graph of GPUs, from ranked links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Pair = tuple[int, int]
EXACT_UP_TO = 12


def describe_islands(count: int, strength: dict[tuple[int, int], float], warnings: list[str]) -> list[list[int]]:
    """Find the islands, and say so when links run between them."""
    groups, is_joined = islands(count, strength)
    if is_joined:
        warnings.append("some direct links run between islands: only within an island is every pair linked directly")
    return groups


def describe_ring(count: int, links: dict[tuple[int, int], tuple[float, str]], warnings: list[str]) -> dict[str, Any]:
    """Find the best ring and name its slowest hop."""
    order, is_proven = best_ring(count, {pair: speed for pair, (speed, _) in links.items()})
    if not is_proven:
        warnings.append(f"{count} GPUs are too many to try every ring: this one is good, not proven best")
    hops = [links[min(a, b), max(a, b)] for a, b in zip(order, order[1:] + order[:1], strict=True)]
    return {"order": order, "slowest": min(hops)[1]}


def islands(nodes: int, strength: Mapping[Pair, float]) -> tuple[list[list[int]], bool]:
    """Group nodes so that within a group every node reaches every other directly.

    Nodes that are all linked with each other make one island. Where only some are (the cube mesh of
    eight V100), the largest fully linked group is taken out first, of equal ones the
    one with the strongest links, then the next.

    Args:
        nodes: Number of nodes, named 0 to ``nodes - 1``.
        strength: The linked pairs (smaller, larger) with the strength of each link.

    Returns:
        Groups of at least two nodes, in order; and whether some links run between two islands.
    """
    near: list[set[int]] = [set() for _ in range(nodes)]
    for first, second in strength:
        near[first].add(second)
        near[second].add(first)
    left, groups = set(range(nodes)), []
    while left:
        group = _largest_clique(left, near, strength)
        if len(group) < 2:
            break
        groups.append(group)
        left -= set(group)
    home = {node: number for number, group in enumerate(groups) for node in group}
    is_joined = any(home.get(first) != home.get(second) for first, second in strength)
    return sorted(groups), is_joined


def _largest_clique(nodes: set[int], near: list[set[int]], strength: Mapping[Pair, float]) -> list[int]:
    """Bron and Kerbosch (1973) with a pivot; stops looking after 20,000 steps and keeps the best so far."""
    best: tuple[int, float, list[int]] = (0, 0.0, [])
    stack: list[tuple[list[int], set[int], set[int]]] = [([], set(nodes), set())]
    for _ in range(20_000):
        if not stack:
            break
        clique, candidates, done = stack.pop()
        if not candidates and not done:
            group = sorted(clique)
            total = sum(strength[a, b] for i, a in enumerate(group) for b in group[i + 1 :])
            if (len(group), total) > best[:2] or ((len(group), total) == best[:2] and group < best[2]):
                best = (len(group), total, group)
        elif candidates:
            pivot = max(candidates | done, key=lambda node: len(near[node] & candidates))
            for node in sorted(candidates - near[pivot]):
                stack.append(([*clique, node], candidates & near[node], done & near[node]))
                candidates = candidates - {node}
                done = done | {node}
    return best[2]


def best_ring(nodes: int, speed: Mapping[Pair, float]) -> tuple[list[int], bool]:
    """Order nodes in a ring whose slowest hop is as fast as possible.

    Among rings with equally fast slowest hops, the one with fewer of them wins, then the one with fewer of the next
    slowest, and so on; then the order that reads smallest, starting at 0.

    Args:
        nodes: Number of nodes, at least 2.
        speed: Speed of each pair (smaller, larger), in any unit: only the order matters. All pairs.

    Returns:
        The order, and whether it is proven best: exact up to `EXACT_UP_TO` nodes, beyond that nearest neighbours
        from some starts improved by reversing stretches (2-opt), and proven only where no ring could have a faster
        slowest hop.
    """
    cost = _costs(nodes, speed)
    if nodes <= 3:
        return list(range(nodes)), True
    if nodes <= EXACT_UP_TO:
        return _exact(nodes, cost), True
    order = _heuristic(nodes, cost)
    slowest = max(cost[a][b] for a, b in zip(order, order[1:] + order[:1], strict=True))
    # Every node has two hops: its second-cheapest link bounds the slowest hop of any ring from below.
    bound = max(sorted(cost[a][b] for b in range(nodes) if b != a)[1] for a in range(nodes))
    return order, slowest <= bound


def _costs(nodes: int, speed: Mapping[Pair, float]) -> list[list[int]]:
    """Make one slow hop cost more than a whole ring of faster ones, so that a sum compares hop by hop."""
    levels = sorted(set(speed.values()), reverse=True)
    weight = {level: (nodes + 1) ** place for place, level in enumerate(levels)}
    return [[0 if a == b else weight[speed[min(a, b), max(a, b)]] for b in range(nodes)] for a in range(nodes)]


def _exact(nodes: int, cost: list[list[int]]) -> list[int]:
    """Held and Karp (1962): the cheapest way home from each node with each set of nodes still to visit."""
    everyone = (1 << nodes) - 1
    home: list[list[int]] = [[0] * nodes for _ in range(everyone + 1)]
    for visited in range(everyone, 0, -1):
        if not visited & 1:
            continue
        rest = [node for node in range(nodes) if not visited >> node & 1]
        for here in range(nodes):
            if visited >> here & 1:
                home[visited][here] = (
                    min(cost[here][node] + home[visited | 1 << node][node] for node in rest) if rest else cost[here][0]
                )
    order, visited = [0], 1
    while visited != everyone:
        here = order[-1]
        node = next(
            node
            for node in range(nodes)
            if not visited >> node & 1 and cost[here][node] + home[visited | 1 << node][node] == home[visited][here]
        )
        order.append(node)
        visited |= 1 << node
    return order


def _heuristic(nodes: int, cost: list[list[int]]) -> list[int]:
    def length(order: list[int]) -> int:
        return sum(cost[a][b] for a, b in zip(order, order[1:] + order[:1], strict=True))

    best: list[int] = []
    for start in range(min(nodes, 4)):
        order = [start]
        left = set(range(nodes)) - {start}
        while left:
            here = order[-1]
            order.append(min(left, key=lambda node: (cost[here][node], node)))
            left.discard(order[-1])
        order = _improve(order, cost)
        if not best or length(order) < length(best):
            best = order
    zero = best.index(0)
    best = best[zero:] + best[:zero]
    return best if best[1] <= best[-1] else [0, *reversed(best[1:])]


def _improve(order: list[int], cost: list[list[int]]) -> list[int]:
    nodes = len(order)
    for _ in range(20):
        changed = False
        for i in range(nodes - 1):
            for j in range(i + 2, nodes - (i == 0)):
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % nodes]
                if cost[a][c] + cost[b][d] < cost[a][b] + cost[c][d]:
                    order[i + 1 : j + 1] = reversed(order[i + 1 : j + 1])
                    changed = True
        if not changed:
            break
    return order
