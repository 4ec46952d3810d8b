"""The settings a server runs with: options, else defaults, checked once before a model loads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.errors import InvalidParams
from engine.params import LookupPolicy, SpeculationParams
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.settings import LookupSettings, SchedulerSettings
from engine.scheduler.state import Limits
from mlxcel_cli.serve_options import ServeOptions, settings_table
from mlxcel_cli.setting import Change

ACCESS_LOGS = ("plain", "json", "off")
REASONING_FORMATS = ("auto", "deepseek", "none")
KV_AUTO = "auto"
DRAFT_KINDS = ("prompt-lookup",)
MAX_DRAFT = 64
MAX_INTEGER = 2**53
"""Whole numbers of JSON may be longer than any clock can count with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """One value for every row of the table; meanings stand there."""

    draft_kind: str | None
    draft_model: str | None
    draft_block_size: int
    prompt_lookup_max_batch: int
    prompt_lookup_policy: str
    spec_type: str | None
    host: str
    port: int
    unix: Path | None
    api_key: tuple[str, ...]
    api_key_file: Path | None
    cors_origin: tuple[str, ...]
    ssl_cert_file: Path | None
    ssl_key_file: Path | None
    max_body_bytes: int
    access_log: str
    alias: tuple[str, ...]
    reasoning_format: str
    parallel: int
    no_batch: bool
    max_queue_depth: int
    kv_cache_budget: str
    max_kv_size: int | None
    prefill_chunk_size: int | None
    prefill_grant_interval: int
    enable_preemption: bool
    preemption_policy: str
    context_shift: bool
    keep: int
    prompt_cache: bool
    prompt_cache_bytes: int
    prompt_cache_entries: int
    prompt_cache_ttl: float
    prompt_cache_min_tokens: int
    prompt_cache_dir: Path | None
    prompt_cache_dir_bytes: int
    warmup: bool
    idle_unload: float
    drain_timeout: float
    endpoint_slots: bool
    endpoint_props: bool
    sse_ping_interval: float
    slow_reader_timeout: float

    def __post_init__(self) -> None:
        _check_refused(self)
        _check_numbers(self)
        _check_choice("--access-log", self.access_log, ACCESS_LOGS)
        _check_choice("--reasoning-format", self.reasoning_format, REASONING_FORMATS)
        policies = tuple(policy.value for policy in PreemptionPolicy)
        _check_choice("--preemption-policy", self.preemption_policy, policies)
        _check_drafts(self)
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            raise InvalidParams("--ssl-cert-file", "and --ssl-key-file are given together")

    def scheduler(
        self,
        kv_budget_tokens: int | None,
        *,
        pipelined: bool,
        lookup: LookupSettings | None = None,
    ) -> SchedulerSettings:
        """The part that the scheduler keeps to."""
        policy = PreemptionPolicy(self.preemption_policy) if self.enable_preemption else None
        return SchedulerSettings(
            limits=Limits(
                parallel=self.slots,
                grant_interval=self.prefill_grant_interval,
                preemption=policy,
            ),
            queue_depth=self.max_queue_depth,
            kv_budget_tokens=kv_budget_tokens,
            prompt_cache=self.cache_limits,
            lookup=lookup,
            is_pipelined=pipelined,
        )

    @property
    def speculation(self) -> SpeculationParams | None:
        """How the server drafts; None: it does not."""
        if self.draft_kind is None or self.spec_type is not None:
            return None
        policy = LookupPolicy(self.prompt_lookup_policy)
        return SpeculationParams(max_draft=self.draft_block_size, policy=policy)

    @property
    def cache_limits(self) -> CacheLimits | None:
        """Bounds of the prompt cache; None: there is none."""
        if not self.prompt_cache:
            return None
        return CacheLimits(
            max_bytes=self.prompt_cache_bytes,
            max_entries=self.prompt_cache_entries,
            ttl_s=self.prompt_cache_ttl or None,
            min_tokens=self.prompt_cache_min_tokens,
            folder=self.prompt_cache_dir,
            folder_bytes=self.prompt_cache_dir_bytes,
        )

    @property
    def slots(self) -> int:
        """Answers written at the same time."""
        return 1 if self.no_batch else self.parallel

    @property
    def kv_budget(self) -> int | None:
        """The budget in tokens; None: what memory holds."""
        return None if self.kv_cache_budget == KV_AUTO else int(self.kv_cache_budget)

    @property
    def origins(self) -> frozenset[str] | None:
        """Origins whose pages may ask; None: any."""
        if "*" in self.cors_origin:
            return None
        return frozenset(self.cors_origin) - {"none"}

    @property
    def socket_path(self) -> Path | None:
        """Where the Unix socket is, if there is one."""
        if self.unix is not None:
            return self.unix
        return Path(self.host) if self.host.endswith(".sock") else None

    def changed(self, changes: Mapping[str, Any]) -> "ServeSettings":
        """A copy with other values of changeable settings.

        Raises:
            InvalidParams: no such setting, one that cannot change, or a bad value.
        """
        table = settings_table()
        for name, value in changes.items():
            if name not in table:
                raise InvalidParams(name, "is no setting")
            if table[name].change is not Change.CHANGEABLE:
                raise InvalidParams(name, f"is {table[name].change}: it takes a restart")
            kind = type(table[name].default)
            allowed = (int, float) if kind is float else (kind,)
            if not isinstance(value, allowed) or isinstance(value, bool) != (kind is bool):
                raise InvalidParams(name, f"must be of type {kind.__name__}")
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise InvalidParams(name, f"must be at most {MAX_INTEGER}")
        return replace(self, **changes)


def settle(options: ServeOptions) -> ServeSettings:
    """``options``, with the table's defaults where they are open.

    Raises:
        InvalidParams: a value is out of its range or not supported; names the option.
    """
    values: dict[str, Any] = {}
    for name, setting in settings_table().items():
        value = getattr(options, name)
        value = setting.default if value is None else value
        values[name] = tuple(value) if isinstance(value, list) else value
    return ServeSettings(**values)


def settings_report(settings: ServeSettings) -> dict[str, dict[str, object]]:
    """Every setting for ``/v1/settings``: value, default, class and variable; no secrets."""
    report: dict[str, dict[str, object]] = {}
    table = settings_table()
    for one in fields(settings):
        row = table[one.name]
        value = getattr(settings, one.name)
        report[one.name] = {
            "value": ("set" if value else "not set") if row.is_secret else _plain(value),
            "default": None if row.is_secret else _plain(row.default),
            "change": row.change.value,
            "variable": f"MLXCEL_{one.name.upper()}",
        }
    return report


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _check_refused(settings: ServeSettings) -> None:
    if settings.context_shift:
        raise InvalidParams(
            "--context-shift", "is not supported: a full context ends the answer with length"
        )
    if settings.keep:
        raise InvalidParams("--keep", "is not supported, because --context-shift is not")


def _check_numbers(settings: ServeSettings) -> None:
    least = {
        "port": 0,
        "max_body_bytes": 1,
        "parallel": 1,
        "prompt_lookup_max_batch": 1,
        "max_queue_depth": 0,
        "prompt_cache_bytes": 1,
        "prompt_cache_entries": 1,
        "prompt_cache_ttl": 0,
        "prompt_cache_min_tokens": 1,
        "prompt_cache_dir_bytes": 1,
        "prefill_grant_interval": 0,
        "idle_unload": 0,
        "drain_timeout": 0,
        "sse_ping_interval": -1,
        "slow_reader_timeout": 0.1,
    }
    for name, low in least.items():
        value = getattr(settings, name)
        if not low <= value < math.inf:
            raise InvalidParams(_option(name), f"must be {low} or more, got {value}")
    if settings.port > 65535:
        raise InvalidParams("--port", f"must be at most 65535, got {settings.port}")
    for name in ("max_kv_size", "prefill_chunk_size"):
        value = getattr(settings, name)
        if value is not None and value < (name == "max_kv_size"):
            raise InvalidParams(_option(name), f"must not be negative or empty, got {value}")
    budget = settings.kv_cache_budget
    if budget != KV_AUTO and not (budget.isdecimal() and int(budget)):
        raise InvalidParams("--kv-cache-budget", f"must be auto or a number above 0, got {budget}")


def _check_drafts(settings: ServeSettings) -> None:
    if settings.draft_kind is not None:
        _check_choice("--draft-kind", settings.draft_kind, DRAFT_KINDS)
    if settings.draft_model is not None:
        raise InvalidParams(
            "--draft-model",
            "is not supported: drafts come without a second model (--draft-kind prompt-lookup)",
        )
    if settings.spec_type is not None:
        _check_choice("--spec-type", settings.spec_type, ("none",))
    _check_choice("--prompt-lookup-policy", settings.prompt_lookup_policy, tuple(LookupPolicy))
    if not 1 <= settings.draft_block_size <= MAX_DRAFT:
        raise InvalidParams(
            "--draft-block-size", f"must be from 1 to {MAX_DRAFT}, got {settings.draft_block_size}"
        )


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidParams(option, f"must be one of {', '.join(allowed)}, got {value!r}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
