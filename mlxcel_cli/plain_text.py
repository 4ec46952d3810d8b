"""Makes text safe to show: what could steer a terminal becomes a visible mark.

Models, files, servers and saved chats hold any characters; a terminal takes some for commands:
to move, to rename its window, to write into the clipboard.
"""

_MARKS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_MARKS |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)
# Lone surrogates cannot be written at all.
_MARKS |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


def visible(text: str) -> str:
    """``text`` with control characters replaced; line ends become newlines."""
    return text.replace("\r\n", "\n").translate(_MARKS)


def marked(text: str) -> str:
    """``text`` with control characters replaced one for one, so that offsets in it stay."""
    return text.translate(_MARKS)


def encodable(text: str) -> str:
    """``text`` as UTF-8 can hold it: lone surrogates, from broken bytes or JSON, are U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
