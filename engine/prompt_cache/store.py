"""Holds KV by token ids under a bound: what texts share once, what was not used longest goes first.

KV of full length is kept in runs, one at each node of a radix tree, so that two texts with a
common beginning hold it once. A ring or recurrent state is of exactly its tokens: it is kept whole,
at the node where they end.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from engine.kv.storage import RowSnapshot
from engine.prompt_cache.key import CacheScope
from engine.prompt_cache.limits import CacheCounters, CacheLimits
from engine.prompt_cache.radix import Node, RadixTree
from engine.prompt_cache.spans import joined, part

Ids = tuple[int, ...]


@dataclass(slots=True)
class Held:
    """The KV at one node."""

    kv: RowSnapshot
    scope: CacheScope
    used_s: float


class KvStore:
    """Trees of KV, one for each scope.

    Args:
        limits: the bounds.
        counters: counts what is evicted.
        clock: seconds, monotonic.
        cuts: whether KV can be cut, and so is kept in runs.
    """

    def __init__(
        self,
        limits: CacheLimits,
        counters: CacheCounters,
        clock: Callable[[], float],
        *,
        cuts: bool,
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._clock = clock
        self._cuts = cuts
        self._trees: dict[CacheScope, RadixTree[Held]] = {}
        self._recent: OrderedDict[Node[Held], None] = OrderedDict()
        """Every node with a value, the one used longest ago first; a parent after its children, so
        that the first is a leaf."""
        self.nbytes = 0
        """Bytes of all KV."""
        self.tokens = 0
        """Tokens whose KV is held."""
        self.entries = 0
        """Texts: leaves where KV is kept in runs, else whole copies."""
        self.changes = 0
        """Raised whenever what `covered` says may have changed."""

    # -- looking up

    def covered(self, scope: CacheScope, ids: Ids) -> int:
        """How many tokens at the beginning of ``ids`` have KV here; uses nothing."""
        tree = self._trees.get(scope)
        return 0 if tree is None else self._usable(tree, ids)[1]

    def find(self, scope: CacheScope, ids: Ids) -> RowSnapshot | None:
        """The KV of the longest beginning of ``ids`` that is here, lazily put together."""
        self.expire()
        tree = self._trees.get(scope)
        if tree is None:
            return None
        nodes, tokens = self._usable(tree, ids)
        if not tokens:
            return None
        self._touch(nodes)
        held = [node.value.kv for node in nodes if node.value is not None]
        return joined(held, tokens) if self._cuts else held[-1]

    # -- putting in

    def put_run(self, scope: CacheScope, ids: Ids, kv: RowSnapshot) -> bool:
        """Keep KV of the last ``kv.tokens`` of ``ids``; those before must be here.

        Returns:
            Whether it was kept: there may be no room next to what comes before it.

        Raises:
            EvalFailed: the backend threw; nothing was changed.
        """
        tree = self._trees.setdefault(scope, RadixTree())
        path = tree.walk(ids)
        done = sum(agreed for _, agreed in path)
        if done != len(ids) - kv.tokens:
            return False
        parent = self._end_of(tree, path)
        nodes = [node for node, _ in path[:-1]] + ([parent] if path else [])
        self._touch(nodes)
        if not self._make_room(kv.nbytes, nodes):
            self._forget_empty(scope)
            return False
        is_leaf_before = parent is not tree.root and not parent.children
        node = tree.graft(parent, ids[done:], Held(kv, scope, self._clock()))
        self._trees[scope] = tree  # It may have lost its last node for the room.
        self._add(node)
        self.entries += not is_leaf_before
        self._touch([*nodes, node])
        self._keep_entries([*nodes, node])
        return True

    def put_whole(self, scope: CacheScope, ids: Ids, kv: RowSnapshot) -> bool:
        """Keep KV of exactly ``ids``; whether there was room."""
        if self.covered(scope, ids) == len(ids):
            self._touch([self._trees[scope].walk(ids)[-1][0]])
            return True
        if not self._make_room(kv.nbytes, []):
            return False
        tree = self._trees.setdefault(scope, RadixTree())
        path = tree.walk(ids)
        done = sum(agreed for _, agreed in path)
        node = self._end_of(tree, path)
        if done < len(ids):
            node = tree.graft(node, ids[done:], None)
        node.value = Held(kv, scope, self._clock())
        self._add(node)
        self.entries += 1
        self._keep_entries([node])
        return True

    # -- letting go

    def expire(self) -> None:
        """Drop what was not used for too long."""
        ttl_s = self._limits.ttl_s
        if ttl_s is None:
            return
        oldest_s = self._clock() - ttl_s
        while self._recent:
            node = next(iter(self._recent))
            assert node.value is not None
            if node.value.used_s >= oldest_s:
                return
            self._counters.expired_bytes += self._drop(node)
            self._counters.evictions_ttl += 1

    def clear(self) -> None:
        """Drop everything."""
        self._trees.clear()
        self._recent.clear()
        self.nbytes = self.tokens = self.entries = 0
        self.changes += 1

    # -- internals

    def _usable(self, tree: RadixTree[Held], ids: Ids) -> tuple[list[Node[Held]], int]:
        path = tree.walk(ids)
        if self._cuts:
            return [node for node, _ in path], sum(agreed for _, agreed in path)
        while path and (path[-1][1] < len(path[-1][0].ids) or path[-1][0].value is None):
            path.pop()
        if not path:
            return [], 0
        return [path[-1][0]], sum(agreed for _, agreed in path)

    def _end_of(self, tree: RadixTree[Held], path: list[tuple[Node[Held], int]]) -> Node[Held]:
        """The node that ends where the path does, made by parting one if need be."""
        if not path:
            return tree.root
        node, agreed = path[-1]
        return node if agreed == len(node.ids) else self._part(tree, node, agreed)

    def _part(self, tree: RadixTree[Held], node: Node[Held], at: int) -> Node[Held]:
        held = node.value
        if not self._cuts or held is None:
            return tree.split(node, at)
        before, behind = part(held.kv, 0, at), part(held.kv, at, len(node.ids))
        upper = tree.split(node, at)
        upper.value = Held(before, held.scope, held.used_s)
        held.kv = behind
        self._recent[upper] = None
        return upper

    def _touch(self, nodes: list[Node[Held]]) -> None:
        """Note a use of a path's nodes, from the root on."""
        now_s = self._clock()
        for node in reversed(nodes):
            assert node.value is not None
            node.value.used_s = now_s
            self._recent.move_to_end(node)

    def _add(self, node: Node[Held]) -> None:
        assert node.value is not None
        self._recent[node] = None
        self.nbytes += node.value.kv.nbytes
        self.tokens += node.value.kv.tokens
        self.changes += 1

    def _make_room(self, nbytes: int, path: list[Node[Held]]) -> bool:
        limit = self._limits.max_bytes
        if limit is None:
            return True
        if nbytes > limit:
            self._counters.rejects_oversized += 1
            return False
        while self.nbytes + nbytes > limit:
            if not self._evict(path):
                return False
            self._counters.evictions_lru += 1
        return True

    def _keep_entries(self, path: list[Node[Held]]) -> None:
        while self.entries > self._limits.max_entries and self._evict(path):
            self._counters.evictions_capacity += 1

    def _evict(self, path: list[Node[Held]]) -> bool:
        """Drop what was used longest ago, unless that is part of ``path``."""
        node = next(iter(self._recent), None)
        if node is None or node in path:
            return False
        self._counters.evicted_bytes += self._drop(node)
        return True

    def _drop(self, node: Node[Held]) -> int:
        held = node.value
        assert held is not None
        assert not (self._cuts and node.children), "a run is evicted before those it continues from"
        del self._recent[node]
        node.value = None
        self.nbytes -= held.kv.nbytes
        self.tokens -= held.kv.tokens
        self.changes += 1
        parent = node.parent
        self._trees[held.scope].prune(node)
        becomes_leaf = self._cuts and parent is not None and parent.value and not parent.children
        self.entries -= not becomes_leaf
        self._forget_empty(held.scope)
        return held.kv.nbytes

    def _forget_empty(self, scope: CacheScope) -> None:
        tree = self._trees.get(scope)
        if tree is not None and not tree.root.children:
            del self._trees[scope]
