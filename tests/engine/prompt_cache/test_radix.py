"""The tree finds what a plain list of texts finds, and holds each token of a beginning once."""

from hypothesis import given
from hypothesis import strategies as st

from engine.prompt_cache.radix import Node, RadixTree

texts = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)


def put(tree: RadixTree[str], ids: tuple[int, ...]) -> None:
    """Add a text, its name at its end."""
    path = tree.walk(ids)
    done = sum(agreed for _, agreed in path)
    node = path[-1][0] if path else tree.root
    if path and path[-1][1] < len(node.ids):
        node = tree.split(node, path[-1][1])
    if done < len(ids):
        node = tree.graft(node, ids[done:], None)
    node.value = str(ids)


def nodes(node: Node[str]) -> list[Node[str]]:
    return [node, *(one for child in node.children.values() for one in nodes(child))]


def path_ids(node: Node[str]) -> tuple[int, ...]:
    """All tokens from the root to the node's end."""
    return node.ids if node.parent is None else (*path_ids(node.parent), *node.ids)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(st.lists(texts, max_size=12), texts)
def test_a_walk_finds_the_longest_common_beginning(held, asked):
    tree: RadixTree[str] = RadixTree()
    for ids in held:
        put(tree, ids)
    walk = tree.walk(asked)
    assert sum(agreed for _, agreed in walk) == max((common(ids, asked) for ids in held), default=0)
    assert all(agreed == len(node.ids) for node, agreed in walk[:-1])


@given(st.lists(texts, min_size=1, max_size=12))
def test_each_beginning_is_held_once(held):
    tree: RadixTree[str] = RadixTree()
    for ids in held:
        put(tree, ids)
    beginnings = {ids[:n] for ids in held for n in range(1, len(ids) + 1)}
    assert sum(len(node.ids) for node in nodes(tree.root)) == len(beginnings)
    assert {path_ids(node) for node in nodes(tree.root) if node.value} == set(held)


@given(st.lists(texts, min_size=1, max_size=12, unique=True), st.data())
def test_taking_a_text_out_leaves_the_others(held, data):
    tree: RadixTree[str] = RadixTree()
    for ids in held:
        put(tree, ids)
    going = data.draw(st.sampled_from(held))
    node = tree.walk(going)[-1][0]
    node.value = None
    tree.prune(node)
    left = [one for one in nodes(tree.root) if one.value]
    assert {path_ids(one) for one in left} == set(held) - {going}
    assert all(one.children or one.value for one in nodes(tree.root)[1:])


def test_the_last_text_leaves_an_empty_tree():
    tree: RadixTree[str] = RadixTree()
    put(tree, (1, 2, 3))
    (node,) = tree.root.children.values()
    node.value = None
    tree.prune(node)
    assert tree.root.children == {}
