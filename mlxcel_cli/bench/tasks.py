"""The five tasks on which prompt lookup is compared with plain decoding.

Three copy what is in the context, as edits and extracts do; two write freely. They are raw texts
to continue, so that base models and small ones can do them too. Free prose is drawn at a
temperature, because a small model that always takes its best token soon repeats itself.
"""

from dataclasses import dataclass

_CODE = '''```python
def line_total(item):
    """Price of one line of the basket."""
    return item.price * item.quantity * (1.0 - item.discount)


def basket_total(items, shipping=<shipping>):
    """Price of everything in the basket, with shipping."""
    total = sum(line_total(item) for item in items)
    if total < <limit>:
        total += shipping
    return round(total, 2)


def report(items):
    """One line of text for each item, and the total."""
    lines = [f"{item.name}: {line_total(item):.2f}" for item in items]
    lines.append(f"total: {basket_total(items):.2f}")
    return "\\n".join(lines)
```
'''

_CONFIG = """```json
{
  "name": "<name>",
  "version": "1.4.2",
  "interval_seconds": 60,
  "sensors": [
    {"id": "t1", "kind": "temperature", "unit": "celsius", "pin": 4, "enabled": true},
    {"id": "h1", "kind": "humidity", "unit": "percent", "pin": 6, "enabled": true},
    {"id": "p1", "kind": "pressure", "unit": "hectopascal", "pin": 7, "enabled": false}
  ],
  "upload": {"url": "https://example.org/api/readings", "retries": 3, "timeout_seconds": <timeout>},
  "alerts": {"temperature": {"min": -10, "max": 40}, "humidity": {"min": 20, "max": 90}}
}
```
"""

_LIGHTHOUSE = (
    "The lighthouse on the northern cape was built in 1862 to warn ships of the reef. For sixty "
    "years its lamp burned oil, and two keepers climbed the stairs every four hours to trim the "
    "wick. In 1923 the lamp was replaced by an electric light, and one keeper was enough. The last "
    "keeper left the tower in 1987. Today the tower is a museum, and every summer the old oil lamp "
    "is lit for one night."
)

_BRIDGE = (
    "The bridge over the river was opened in 1911, after three years of work by four hundred men. "
    "It carried carts and later trams, until the rails were taken out in 1958 to make room for "
    "cars. A flood damaged two of its pillars in 1974, and it was closed for a year. In 2003 the "
    "town built a new bridge downstream for the heavy traffic. Since then the old bridge belongs "
    "to walkers and cyclists, and on Saturdays there is a market on it."
)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and how it is continued."""

    name: str
    copies: bool
    """Whether the answer is mostly in the prompt."""
    prompt: str
    tokens: int
    """Most tokens of the answer, unless the caller asks for another number."""
    temperature: float = 0.0
    seed: int = 1


def _code(shipping: str, limit: str) -> str:
    return _CODE.replace("<shipping>", shipping).replace("<limit>", limit)


def _config(name: str, timeout: str) -> str:
    return _CONFIG.replace("<name>", name).replace("<timeout>", timeout)


TASKS = (
    Task(
        "edit a function",
        copies=True,
        prompt=(
            f"Version 1, shipping 4.9 below 50:\n\n{_code('4.9', '50.0')}\n"
            f"Version 2, shipping 5.9 below 60:\n\n{_code('5.9', '60.0')}\n"
            "Version 3, shipping 6.9 below 70:\n\n```python\n"
        ),
        tokens=400,
    ),
    Task(
        "edit JSON",
        copies=True,
        prompt=(
            f"Configuration of station north:\n\n{_config('north', '10')}\n"
            f"Configuration of station south, with a longer timeout:\n\n{_config('south', '20')}\n"
            "Configuration of station west, with the longest timeout:\n\n```json\n{\n"
        ),
        tokens=400,
    ),
    Task(
        "summary",
        copies=True,
        prompt=(
            f"Article: {_LIGHTHOUSE}\n\nSummary in the article's own words: The lighthouse on the "
            "northern cape was built in 1862 to warn ships of the reef. In 1923 the lamp was "
            "replaced by an electric light. The last keeper left the tower in 1987. Today the "
            f"tower is a museum.\n\nArticle: {_BRIDGE}\n\nSummary in the article's own words:"
        ),
        tokens=400,
    ),
    Task(
        "write an email",
        copies=False,
        prompt=(
            "Subject: Team offsite in October\n\nDear all,\n\nI am writing to let you know about"
        ),
        tokens=400,
        temperature=0.8,
    ),
    Task(
        "story",
        copies=False,
        prompt=(
            "The Clockmaker's Daughter\n\nChapter One\n\nOn the morning that the clocks stopped, "
            "Anna woke to a silence she had never heard before."
        ),
        tokens=800,
        temperature=0.8,
    ),
)
