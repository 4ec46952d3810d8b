"""Makes text safe to show: what could steer a terminal becomes a visible mark."""

_MARKS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_MARKS |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)


def visible(text: str) -> str:
    """``text`` with control characters replaced; line ends become newlines."""
    return text.replace("\r\n", "\n").translate(_MARKS)
