"""Finds the token that ends an assistant's turn where no file of a model names it.

Some folders name only the token that ends a document. The model then ends its turn as its chat
template taught it, and would continue with an invented turn of the user.
"""

from collections.abc import Collection

from engine.errors import EngineError
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer

_ANSWER = "ANSWER"
_PROBE = ({"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": _ANSWER})


def turn_end(
    template: ChatTemplate, tokenizer: Tokenizer, known_ends: Collection[int]
) -> int | None:
    """Return the special token that the template writes right behind an assistant's text.

    Args:
        template: the model's.
        tokenizer: the model's.
        known_ends: end tokens that files name. Where the template writes one of them, None.
    """
    try:
        text = template.render(_PROBE, add_generation_prompt=False).text
    except EngineError:  # it takes no such conversation, and says so when it is used
        return None
    ends = {tokenizer.token_name(token) for token in known_ends}
    if any(end in text for end in ends if end):
        return None
    _, found, behind = text.rpartition(_ANSWER)
    behind = behind.lstrip()
    named = [special for special in tokenizer.special_texts if behind.startswith(special)]
    return tokenizer.token_id(max(named, key=len)) if found and named else None
