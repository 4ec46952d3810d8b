"""Rules of names: one class a name, and the field's words in names, prose and pages (ADR 0003)."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.rules.tree import ROOT, python_files, syntax_tree, tracked_files

PRODUCT = python_files("engine", "mlxcel_cli")
CODE = [*PRODUCT, *python_files("benchmarks")]

PAGES = [
    path
    for path in tracked_files()
    if path.suffix == ".md" and path.parts[0] != "snapshots" and path.name != "CHANGELOG.md"
]

FIELD_WORDS = {
    "adopt adopted adopts": "import",
    "answering": "response",
    "arm arms": "variant",
    "asking": "request",
    "beside": "interleaved, alongside, with",
    "bury": "fail all",
    "desk": "command context",
    "detach detached": "export",
    "donate donation donations donor donors": "prefix export",
    "door doors": "entry point, row pool",
    "entrant entrants": "admitted",
    "handover": "KV transfer",
    "heed": "install, handle",
    "hosting": "model host",
    "intake": "validation",
    "judge": "reference",
    "knob knobs": "settings, parameters",
    "ledger": "row table",
    "letter letters": "character",
    "mend mended mends": "fix",
    "park parked": "long, prefilling",
    "pen": "writer",
    "remembered remembers": "cached",
    "retire retired retires": "finish, export",
    "retract retracted retracts": "discard",
    "rider riders": "inactive row",
    "shelf": "registry",
    "tell teller telling tells told": "emit, send, report, format, show",
}
"""Words that mean something here only, and what the field says."""

FIELD_PHRASES = {
    "g(?:ive|ives|ave|iven|iving) way": "is preempted",
    "go(?:es|ing)? on|went on": "continue",
    "last words": "shutdown grace",
    "life signs": "keep-alive",
    "rid(?:e|es|ing) along": "is masked",
}

FIELD_NAMES = {
    "at_piece": "at_chunk",
    "is_held": "is_paused",
    "last_words": "shutdown_grace",
    "life_signs": "keep_alive",
    "prefill_pieces": "prefill_chunks",
    "take_slot": "assign_slot",
    "wait_again": "requeue",
}
"""Names that are wrong as wholes, though their words are not."""

ALLOWED = {
    ("mlxcel_cli/parity/plan.py", "tell"): "a prompt",
    ("benchmarks/parity_starter.py", "tell"): "a prompt",
    ("mlxcel_cli/command_lines.py", "arms"): "the old spelling of an option, which users may type",
}
"""File and word -> why it stands there."""

NAMES_ONLY = {"adopt", "adopted", "adopts", "answering", "asking", "detach", "hosting", "pen"}
"""Plain English in a sentence."""

OLD = {word: better for words, better in FIELD_WORDS.items() for word in words.split()}
IN_PROSE = "|".join([*sorted(OLD.keys() - NAMES_ONLY), *FIELD_PHRASES])
PHRASES = re.compile(rf"\b(?:{IN_PROSE})\b", re.IGNORECASE)

# Going down while the scheduler's names change; 0 is the aim.
STILL_IN_NAMES = 30
STILL_IN_PROSE = 55


def parts(name: str) -> list[str]:
    """``_RowTable2`` is ``row``, ``table``."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Names that code gives itself: not those of libraries it uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def is_old_name(name: str) -> bool:
    return name.strip("_").lower() in FIELD_NAMES or any(part in OLD for part in parts(name))


def prose(text: str) -> str:
    """Docstrings, messages and comments of a module, one line each."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", None)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(token.string for token in tokens if token.type in kinds)


def old_phrases(text: str) -> list[str]:
    return PHRASES.findall(re.sub(r"[\s#]+", " ", text))


def test_no_two_classes_of_the_product_share_a_name():
    places = defaultdict(list)
    for path in PRODUCT:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice == {}


def test_names_are_the_field_s():
    found = [
        f"{path}: {name}"
        for path in CODE
        for name in [path.stem, *sorted({*defined_names(syntax_tree(path))})]
        if is_old_name(name)
    ]
    assert len(found) <= STILL_IN_NAMES, found


def test_docstrings_messages_and_comments_use_the_field_s_words():
    found = [
        f"{path}: {phrase}"
        for path in CODE
        for phrase in old_phrases(prose((ROOT / path).read_text("utf-8")))
        if (path.as_posix(), phrase.lower()) not in ALLOWED
    ]
    assert len(found) <= STILL_IN_PROSE, found


def test_pages_use_the_field_s_words():
    found = [
        f"{path}: {phrase}"
        for path in PAGES
        for phrase in old_phrases((ROOT / path).read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "is_old"),
    [
        ("RowLedger", True),
        ("_is_parked", True),
        ("life_signs", True),
        ("row_table", False),
        ("letterbox", False),
    ],
)
def test_what_counts_as_an_old_name(name: str, is_old: bool):
    assert is_old_name(name) == is_old


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it goes\n    on", ["goes on"]),
        ("Judges of a judge", ["judge"]),
        ("besides, foretold", []),
    ],
)
def test_what_counts_as_an_old_phrase(text: str, found: list[str]):
    assert old_phrases(text) == found
