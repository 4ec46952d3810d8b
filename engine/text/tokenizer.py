"""Text to token ids and back, by the ``tokenizers`` library straight from ``tokenizer.json``.

Text that a user wrote never becomes a special token: only ``parse_special`` and the template's
own text do. Ids outside the vocabulary (models pad theirs) stand for no text.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import InvalidParams, ModelFileError
from engine.text.breakers import BreakerIndex
from engine.text.decoder import ByteDecoder, StreamDecoder, WindowDecoder
from engine.text.fallback import load_converted
from engine.text.literals import LiteralEncoder, token_ids
from engine.text.pieces import byte_alphabet, read_piece_rules, token_bytes
from engine.text.rendered import RenderedPrompt

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Keys of ``tokenizer_config.json`` whose tokens are special whatever ``tokenizer.json`` says."""

CONTEXT_TOKENS = 16
"""The last tokens of a prompt whose text decides how the next token is spaced."""


class Tokenizer:
    """One model's vocabulary, both ways. Safe to share between threads.

    Attributes:
        vocab_size: entries of the vocabulary, added tokens included; the model's logits may
            be wider.
        bos_text, eos_text: what templates print for them; "" where the model has none.
        bos_id: the token that begins a string, if the model has one.
        eos_ids: the tokenizer's own end token; a model's config may name more.
        special_ids: tokens that are marks, not text.
        special_texts: their names, in the order of their ids.
        breakers: finds the tokens of DRY's sequence breakers.
        adds_bos: whether a string is to begin with ``bos_id``.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
        """Wrap a loaded tokenizer; ``from_folder`` is the usual entry point.

        Args:
            backend: taken over: its padding and truncation are switched off.
            config: the contents of ``tokenizer_config.json``.
        """
        backend.no_padding()
        backend.no_truncation()
        named = {key: _token_text(config.get(key)) for key in NAMED_TOKENS}
        _flag_special(backend, [text for text in named.values() if text])
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(
            token for token, entry in added.items() if entry.special
        )
        self._added_ids = frozenset(added)
        self.special_texts: tuple[str, ...] = tuple(
            added[token].content for token in sorted(self.special_ids)
        )
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_text: str = named["bos_token"] or ""
        self.eos_text: str = named["eos_token"] or ""
        self.bos_id = self._id_of(named["bos_token"])
        eos_id = self._id_of(named["eos_token"])
        self.eos_ids: frozenset[int] = frozenset() if eos_id is None else frozenset({eos_id})
        self.adds_bos = self.bos_id is not None and _adds_bos(backend, config, self.bos_id)
        self._literal = LiteralEncoder(backend, unk=named["unk_token"])
        self._rules = read_piece_rules(
            _state(backend.decoder), byte_level_vocabulary=_is_byte_level(backend)
        )
        self._alphabet = byte_alphabet()
        self._pieces: dict[int, bytes | None] = {}
        self.breakers = BreakerIndex()

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read a model folder's tokenizer.

        Raises:
            ModelFileError: a file is missing or broken.
            UnsupportedModel: it has no ``tokenizer.json`` and no converter knows its kind.
        """
        path = folder / "tokenizer.json"
        config = read_json(folder / "tokenizer_config.json")
        if not path.is_file():
            return cls(load_converted(folder), config)
        try:
            backend = _read_backend(path)
        except Exception as error:  # the library raises nothing narrower
            raise ModelFileError(path, f"is no tokenizer: {error}") from error
        return cls(backend, config)

    def encode(
        self, text: str, *, parse_special: bool = False, add_bos: bool = False
    ) -> tuple[int, ...]:
        """The ids of a string.

        Args:
            text: lone surrogates in it count as U+FFFD.
            parse_special: whether ``<|im_end|>`` in it is the token of that name; otherwise no
                special token comes out, but for the unknown token.
            add_bos: whether to begin with ``bos_id``, if the model's texts do.
        """
        text = _well_formed(text)
        if parse_special:
            ids = tuple(token_ids(self._backend, text))
        else:
            ids = self._literal.encode(text, ((0, len(text)),))
        return (self.bos_id, *ids) if add_bos and self.adds_bos and self.bos_id is not None else ids

    def encode_rendered(self, prompt: RenderedPrompt) -> tuple[int, ...]:
        """The ids of a rendered prompt, with exactly one BOS where the model wants one.

        Without literal spans they are those of the whole text at once, special tokens parsed.
        """
        ids = self._literal.encode(_well_formed(prompt.text), prompt.literals)
        if not self.adds_bos or self.bos_id is None:
            return ids
        start = 0
        while start < len(ids) and ids[start] == self.bos_id:
            start += 1
        return (self.bos_id, *ids[start:])

    def decode(
        self, ids: Sequence[int], *, skip_special: bool = True, context: Sequence[int] = ()
    ) -> str:
        """The text of some tokens, behind those of ``context``; broken UTF-8 reads as U+FFFD."""
        decoder = self.decoder(skip_special=skip_special, context=context)
        return "".join([decoder.push(token) for token in ids]) + decoder.finish()

    def piece_bytes(self, token: int) -> bytes:
        """The bytes of one token inside a string, its name for a special one; b"" outside."""
        return self._piece(token) or b""

    def decoder(
        self,
        *,
        skip_special: bool = True,
        keep_texts: Collection[str] = (),
        context: Sequence[int] = (),
    ) -> StreamDecoder:
        """A fresh decoder for one answer.

        Args:
            skip_special: whether special tokens are left out; otherwise their names are text.
            keep_texts: names of special tokens that are text all the same, such as the marks
                of reasoning.
            context: the tokens of the text that the answer continues. A text's first token may
                lose its space, that of a continuation keeps it.
        """
        if self._rules is None:
            keeps_all = not skip_special or not self.special_ids.isdisjoint(
                map(self._id_of, keep_texts)
            )
            return WindowDecoder(
                self._backend_decoder(skip_special=not keeps_all), context[-CONTEXT_TOKENS:]
            )
        continues = any(token not in self.special_ids for token in context)
        hidden = self.special_ids.difference(map(self._id_of, keep_texts))
        return ByteDecoder(
            (lambda token: None if token in hidden else self._piece(token))
            if skip_special
            else self._piece,
            leading_spaces=0 if continues else self._rules.leading_spaces,
            bare_start=self._rules.bare_start and not continues,
        )

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry spelt ``text``, if there is one."""
        return self._id_of(text)

    def token_name(self, token: int) -> str | None:
        """How the vocabulary spells a token; None outside it."""
        return self._backend.id_to_token(token) if 0 <= token < 2**32 else None

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Refuse ids that are no vocabulary entries.

        Raises:
            InvalidParams: naming ``field`` and the first bad id.
        """
        for token in ids:
            if self._piece(token) is None:
                raise InvalidParams(field, f"{token} is not a token of this model")

    def _id_of(self, text: str | None) -> int | None:
        return None if text is None else self._backend.token_to_id(text)

    def _piece(self, token: int) -> bytes | None:
        try:
            return self._pieces[token]
        except KeyError:
            piece = self._pieces[token] = self._read_piece(token)
            return piece

    def _read_piece(self, token: int) -> bytes | None:
        text = self.token_name(token)
        # Added text is spelt as it is, also where the vocabulary spells bytes by characters.
        is_added = self._rules is not None and self._rules.byte_level and token in self._added_ids
        if text is None or self._rules is None or is_added:
            return None if text is None else text.encode()
        return token_bytes(text, self._rules, self._alphabet)

    def _backend_decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        known = [token for token in ids if 0 <= token < 2**32]
        return str(self._backend.decode(known, skip_special_tokens=skip_special))

    def _backend_decoder(self, *, skip_special: bool) -> Callable[[Sequence[int]], str]:
        return lambda ids: self._backend_decode(ids, skip_special=skip_special)


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    with path.open("rb") as file:
        has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    if has_mark:  # the library takes a byte order mark for broken JSON
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    return tokenizers.Tokenizer.from_file(str(path))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder; empty when there is no such file.

    Raises:
        ModelFileError: the file is not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(path, f"is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "is not a JSON object")
    return value


def _token_text(entry: object) -> str | None:
    """The text of a token as ``tokenizer_config.json`` names it: a string or an object."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) and entry else None


def _flag_special(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> None:
    known = {entry.content: entry for entry in backend.get_added_tokens_decoder().values()}
    for text in texts:
        entry = known.get(text)
        if backend.token_to_id(text) is None or (entry is not None and entry.special):
            continue
        backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])


def _adds_bos(backend: tokenizers.Tokenizer, config: Mapping[str, Any], bos_id: int) -> bool:
    declared = config.get("add_bos_token")
    if isinstance(declared, bool):
        return declared
    return bool(backend.encode("").ids[:1] == [bos_id])


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    state = _state(backend.pre_tokenizer) or {}
    stages = state.get("pretokenizers", [state])
    named = any(stage.get("type") == "ByteLevel" for stage in stages)
    # "Ġ" is the space of GPT-2's alphabet: without it the vocabulary is spelt otherwise.
    return named and backend.token_to_id("Ġ") is not None


def _state(part: Any) -> dict[str, Any] | None:
    """The JSON of a decoder or pre-tokenizer; a custom one, which Python made, has none."""
    if part is None:
        return None
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state


def _well_formed(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which have no UTF-8; its length stays."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return text
