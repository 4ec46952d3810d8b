"""Every setting of ``mlxcel serve``, once: type, default, range, help, and when it may change.

The command's options and help, the options file's keys, the start-up summary, ``/v1/settings`` and
docs/server.md come from these declarations.
"""
# ruff: noqa: RUF009 - what is called makes a field

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from engine.errors import InvalidParams
from engine.params import MAX_DRAFT_TOKENS, LookupPolicy, SpeculationParams
from mlxcel_cli.lookup_options import LOOKUP, complete_policies, lookup_help
from mlxcel_cli.option_groups import option_group
from mlxcel_cli.options import NETWORK, ApiKeys

SERVED = "What is served"
BATCH = "Batch"
CACHE = "Prompt cache"
LIFE = "Life and streams"

KV_AUTO = "auto"


class Mutability(StrEnum):
    """When a setting may change."""

    START_UP = "start-up"
    """It is used while the server starts."""
    READ_ONLY = "read-only"
    """It is in force while the server runs, and stays."""
    CHANGEABLE = "changeable"
    """``POST /v1/settings`` changes it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of `ServeValues` as its users meet it."""

    name: str
    default: object
    group: str
    help: str
    hint: Any
    """Of the option."""
    spellings: tuple[str, ...]
    metavar: str | None = None
    completion: Any = None
    change: Mutability = Mutability.READ_ONLY
    is_secret: bool = False
    """Whether pages show only that it is set."""
    low: float | None = None
    """Least value of a number."""
    high: float = math.inf
    choices: tuple[str, ...] = ()
    refused: str | None = None
    """Why another value than the default is refused: the option is known from other servers."""

    def check(self, value: Any) -> None:
        """Refuse what the setting cannot be.

        Raises:
            InvalidParams: names the option and what it allows.
        """
        if self.refused is not None and value != self.default:
            raise InvalidParams(self._option, self.refused)
        if value is None:
            return
        if self.low is not None and not (self.low <= value <= self.high and value < math.inf):
            is_bounded = self.high < math.inf
            allowed = f"from {self.low} to {self.high}" if is_bounded else f"{self.low} or more"
            raise InvalidParams(self._option, f"must be {allowed}, got {value}")
        if self.choices and value not in self.choices:
            raise InvalidParams(
                self._option, f"must be one of {', '.join(self.choices)}, got {value!r}"
            )

    @property
    def annotation(self) -> Any:
        """The option, None where it is not given."""
        return Annotated[
            self.hint | None,
            typer.Option(
                *self.spellings, metavar=self.metavar, rich_help_panel=self.group, help=self.help,
                autocompletion=self.completion,
            ),
        ]  # fmt: skip

    @property
    def _option(self) -> str:
        return self.spellings[0].partition("/")[0]


def _setting(default: object, group: str, help_text: str, metavar: str = "", **more: object) -> Any:
    """A setting with what `Setting` says of it; ``{}`` in its help is the default."""
    shown = f"{default:g}" if isinstance(default, float) else default
    described = {"group": group, "help": help_text.format(shown), "metavar": metavar or None}
    return field(default=default, metadata={**described, **more})


_START_UP = {"change": Mutability.START_UP}
_CHANGEABLE = {"change": Mutability.CHANGEABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeValues:
    """The settings a server runs with."""

    draft_kind: str | None = _setting(
        None, LOOKUP,
        "Prompt lookup: draft from a request's prompt and answer so far, and verify several "
        "tokens in one forward. The text stays the same; edits, extracts and code get faster. A "
        'request opts out with "speculative": false. Default: no drafts.',
        "prompt-lookup", choices=("prompt-lookup",),
    )  # fmt: skip
    draft_model: str | None = _setting(
        None, LOOKUP, "Not supported: drafts need no second model (--draft-kind prompt-lookup).",
        "MODEL",
        refused="is not supported: drafts come without a second model "
        "(--draft-kind prompt-lookup)",
    )  # fmt: skip
    draft_block_size: int = _setting(
        SpeculationParams().max_draft, LOOKUP, lookup_help("max_draft"),
        "N", low=1, high=MAX_DRAFT_TOKENS,
    )  # fmt: skip
    prompt_lookup_max_batch: int = _setting(
        4, LOOKUP,
        "Draft only while at most N requests are decoded; with more, plain steps of the whole "
        "batch are faster. Default: {}.",
        "N", low=1,
    )  # fmt: skip
    prompt_lookup_policy: str = _setting(
        LookupPolicy.AUTO.value, LOOKUP, lookup_help("policy"),
        "POLICY", choices=tuple(LookupPolicy), completion=complete_policies,
    )  # fmt: skip
    spec_type: str | None = _setting(
        None, LOOKUP, "none: no drafts, whatever --draft-kind, environment or options file say.",
        "none", choices=("none",),
    )  # fmt: skip

    host: str = _setting(
        "127.0.0.1", NETWORK,
        "Address to listen on; one that ends in .sock is a Unix socket's path. Default: {}.",
        "HOST", **_START_UP,
    )  # fmt: skip
    port: int = _setting(
        8080, NETWORK, "Port to listen on; 0 takes a free one and prints it. Default: {}.",
        "N", low=0, high=65535, **_START_UP,
    )  # fmt: skip
    unix: Path | None = _setting(
        None, NETWORK, "Listen on a Unix socket instead of a port.", "PATH", **_START_UP
    )
    api_key: tuple[str, ...] = _setting((), NETWORK, "", is_secret=True, **_START_UP)
    api_key_file: Path | None = _setting(
        None, NETWORK, "More keys, one a line.", "FILE", **_START_UP
    )
    cors_origin: tuple[str, ...] = _setting(
        ("localhost",), NETWORK,
        "Web pages of this origin may send requests (https://example.org); may be given several "
        'times; "localhost": pages of this machine, "none": no page, "*": any. '
        "Default: localhost.",
        "ORIGIN",
    )  # fmt: skip
    allowed_host: tuple[str, ...] = _setting(
        (), NETWORK,
        "Another name by which clients reach a server on a loopback address (a proxy's); may be "
        "given several times.",
        "NAME", **_START_UP,
    )  # fmt: skip
    ssl_cert_file: Path | None = _setting(
        None, NETWORK, "Serve HTTPS with this certificate chain (PEM).", "FILE", **_START_UP
    )
    ssl_key_file: Path | None = _setting(
        None, NETWORK, "The certificate's private key (PEM).", "FILE", **_START_UP
    )
    max_body_bytes: int = _setting(
        16 * 2**20, NETWORK, "Longest request body that is accepted. Default: {}.", "N", low=1
    )
    access_log: str = _setting(
        "plain", NETWORK,
        "Log each request on stderr: as a line, as a JSON object, or not at all. Default: {}.",
        "plain|json|off", choices=("plain", "json", "off"), **_CHANGEABLE,
    )  # fmt: skip

    alias: tuple[str, ...] = _setting(
        (), SERVED,
        "Name under which the model is served, in addition to its own; may be given several "
        "times, the first is the one it is listed by.",
        "NAME",
    )  # fmt: skip
    reasoning_format: str = _setting(
        "auto", SERVED,
        "Where a reasoning model's thoughts go: into reasoning_content (auto and deepseek), or "
        "with their marks into content (none). Default: {}.",
        "auto|deepseek|none", choices=("auto", "deepseek", "none"),
    )  # fmt: skip

    parallel: int = _setting(
        4, BATCH, "Requests that are decoded at the same time. Default: {}.",
        "N", low=1, spellings=("--parallel", "--max-batch-size"),
    )  # fmt: skip
    no_batch: bool = _setting(
        default=False, group=BATCH, help_text="Answer one request at a time, as --parallel 1.",
        spellings=("--no-batch/--batch",),
    )  # fmt: skip
    max_queue_depth: int = _setting(
        32, BATCH, "Requests that may wait for a slot; more are refused (503). Default: {}.",
        "N", low=0,
    )  # fmt: skip
    kv_cache_budget: str = _setting(
        KV_AUTO, BATCH,
        "Tokens of KV that all running requests may take together: a number, or auto, what free "
        "memory holds. Default: {}.",
        "auto|N",
    )  # fmt: skip
    max_kv_size: int | None = _setting(
        None, BATCH,
        "Most tokens of KV of one request: a bound on prompt and answer together, as --ctx-size. "
        "Default: the model's context.",
        "N", low=1,
    )  # fmt: skip
    prefill_chunk_size: int | None = _setting(
        None, BATCH,
        "Most prompt tokens of one forward; 0 is the whole prompt. Default: measured, about half "
        "a second's worth.",
        "N", low=0,
    )  # fmt: skip
    prefill_grant_interval: int = _setting(
        16, BATCH,
        "Decoding steps of running requests for each chunk of a long prompt, which is then split "
        "into smaller ones that come as much sooner; 0: none while any runs. Default: {}.",
        "N", low=0,
    )  # fmt: skip
    enable_preemption: bool = _setting(
        default=False, group=BATCH,
        help_text="Let running requests be preempted by others and resumed later.",
    )  # fmt: skip
    preemption_policy: str = _setting(
        "longest-first", BATCH,
        "Which request is preempted first: longest-first or lowest-priority. Default: {}.",
        "POLICY", choices=("longest-first", "lowest-priority"),
    )  # fmt: skip
    context_shift: bool = _setting(
        default=False, group=BATCH, help_text="Not supported: a full context ends the answer.",
        refused="is not supported: a full context ends the answer with length",
    )  # fmt: skip
    keep: int = _setting(
        0, BATCH, "Not supported, as --context-shift. Default: {}.",
        "N", refused="is not supported, because --context-shift is not",
    )  # fmt: skip

    prompt_cache: bool = _setting(
        default=True, group=CACHE,
        help_text="Cache the KV of prompts and answers, so that a prompt with a cached prefix is "
        "prefilled only from where it differs. Default: --prompt-cache.",
    )  # fmt: skip
    prompt_cache_bytes: int = _setting(
        2 * 2**30, CACHE,
        "Most memory it takes; the least recently used entries go first. Default: {}.",
        "N", low=1,
    )  # fmt: skip
    prompt_cache_entries: int = _setting(
        1024, CACHE, "Most entries, each a prompt with its answer. Default: {}.", "N", low=1
    )
    prompt_cache_ttl: float = _setting(
        3600.0, CACHE,
        "Seconds after its last use at which an entry is dropped; 0 is never. Default: {}.",
        "S", low=0,
    )  # fmt: skip
    prompt_cache_min_tokens: int = _setting(
        32, CACHE, "Shortest common prefix that is used. Default: {}.", "N", low=1
    )
    prompt_cache_dir: Path | None = _setting(
        None, CACHE,
        "Keep entries in this folder too, past a restart. It holds what users wrote, in a form "
        "that can be read back. Default: memory only.",
        "FOLDER",
    )  # fmt: skip
    prompt_cache_dir_bytes: int = _setting(
        8 * 2**30, CACHE, "Most bytes of that folder's files. Default: {}.", "N", low=1
    )

    warmup: bool = _setting(
        default=True, group=LIFE,
        help_text="Answer one short prompt before the first client's. Default: --warmup.",
        **_START_UP,
    )  # fmt: skip
    idle_unload: float = _setting(
        0.0, LIFE,
        "Free the model after so many minutes without a request; the next one loads it again. 0 "
        "is never. Default: {}.",
        "MIN", low=0, **_CHANGEABLE,
    )  # fmt: skip
    drain_timeout: float = _setting(
        5.0, LIFE,
        "Seconds that running requests have to finish after SIGINT or SIGTERM; a second signal "
        "ends them at once. Default: {}.",
        "S", low=0, **_CHANGEABLE,
    )  # fmt: skip
    endpoint_slots: bool = _setting(
        default=True, group=LIFE,
        help_text="Show at GET /slots what each slot does. Default: --slots.",
        spellings=("--slots/--no-slots",),
    )  # fmt: skip
    endpoint_props: bool = _setting(
        default=False, group=LIFE,
        help_text="Accept POST /props, which changes nothing; GET /props is always there.",
        spellings=("--props/--no-props",),
    )  # fmt: skip
    sse_ping_interval: float = _setting(
        30.0, LIFE,
        "Seconds of silence after which a stream carries a comment to keep the connection alive; "
        "-1 is never. Default: {}.",
        "S", low=-1, **_CHANGEABLE,
    )  # fmt: skip
    slow_reader_timeout: float = _setting(
        30.0, LIFE,
        "Seconds after which a client that does not read its stream is disconnected; its answer "
        "is paused until then. Default: {}.",
        "S", low=0.1, **_CHANGEABLE,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            setting.check(getattr(self, name))
        budget = self.kv_cache_budget
        if budget != KV_AUTO and not (budget.isdecimal() and int(budget)):
            raise InvalidParams(
                "--kv-cache-budget", f"must be auto or a number above 0, got {budget}"
            )
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            raise InvalidParams("--ssl-cert-file", "and --ssl-key-file are given together")


def _option_hint(hint: Any) -> Any:
    """``tuple[str, ...]`` gives ``list[str]``, ``int | None`` ``int``."""
    if get_origin(hint) is tuple:
        return list[str]
    return next((one for one in get_args(hint) if one is not NoneType), hint)


def _described(name: str, hint: Any, default: object, metadata: Any) -> Setting:
    dashed = name.replace("_", "-")
    spelling = f"--{dashed}/--no-{dashed}" if hint is bool else f"--{dashed}"
    return Setting(
        **{
            "name": name,
            "default": default,
            "hint": _option_hint(hint),
            "spellings": (spelling,),
            **metadata,
        }
    )


SETTINGS = MappingProxyType(
    {
        one.name: _described(one.name, one.type, one.default, one.metadata)
        for one in fields(ServeValues)
    }
)
"""Every setting by its key, in the order of the help page."""


_OPTIONS = {name: one.annotation for name, one in SETTINGS.items()} | {"api_key": ApiKeys}


class ServeOptions(option_group("ServeOptions", _OPTIONS)):  # type: ignore[misc]
    """The options of ``serve`` that no other command has."""
