"""A radix tree over token ids: texts with a common beginning share its nodes.

It knows nothing of KV: a node's value is whatever its owner puts there.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class Node(Generic[V]):
    """A run of tokens behind its parent's.

    Args:
        ids: its own tokens; empty only at the root.
        parent: None only at the root.
        value: what its owner keeps here.
    """

    __slots__ = ("children", "ids", "parent", "value")

    def __init__(self, ids: tuple[int, ...], parent: "Node[V] | None", value: V | None) -> None:
        self.ids = ids
        self.parent = parent
        self.value = value
        self.children: dict[int, Node[V]] = {}
        """By their first token."""


Walk = list[tuple[Node[V], int]]
"""Nodes from the root on, each with how many of its tokens agree; only the last may be partial."""


class RadixTree(Generic[V]):
    """Texts as paths from a root without tokens."""

    def __init__(self) -> None:
        self.root: Node[V] = Node((), None, None)

    def walk(self, ids: Sequence[int]) -> "Walk[V]":
        """The longest path that agrees with the beginning of ``ids``, without the root."""
        ids = tuple(ids)
        path: Walk[V] = []
        node, done = self.root, 0
        while done < len(ids):
            child = node.children.get(ids[done])
            if child is None:
                break
            alike = agreed(child.ids, ids[done : done + len(child.ids)])
            path.append((child, alike))
            done += alike
            if alike < len(child.ids):
                break
            node = child
        return path

    def graft(self, parent: Node[V], ids: tuple[int, ...], value: V | None) -> Node[V]:
        """Add a node behind ``parent``, none of whose children begins with the same token."""
        assert ids, "a node has tokens"
        assert ids[0] not in parent.children, "the path continues in a child"
        node = Node(ids, parent, value)
        parent.children[ids[0]] = node
        return node

    def split(self, node: Node[V], tokens: int) -> Node[V]:
        """Part a node after its first ``tokens``; the new upper part has no value.

        ``node`` itself becomes the lower part and keeps its value and children.
        """
        assert 0 < tokens < len(node.ids), "both parts have tokens"
        parent = node.parent
        assert parent is not None
        upper: Node[V] = Node(node.ids[:tokens], parent, None)
        parent.children[upper.ids[0]] = upper
        node.ids = node.ids[tokens:]
        node.parent = upper
        upper.children[node.ids[0]] = node
        return upper

    def prune(self, node: Node[V]) -> None:
        """Take a node out if it has neither value nor children, and then its parent likewise."""
        while node.parent is not None and node.value is None and not node.children:
            parent = node.parent
            del parent.children[node.ids[0]]
            node = parent


def agreed(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common beginning."""
    if one == other:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
