"""The settings a server runs with: options, else defaults, checked once before a model loads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import InvalidParams
from engine.params import LookupPolicy, SpeculationParams
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.settings import LookupSettings, SchedulerSettings
from engine.scheduler.state import Limits
from mlxcel_cli.serve_options import KV_AUTO, SETTINGS, Mutability, ServeOptions, ServeValues

MAX_INTEGER = 2**53
"""Whole numbers of JSON may be longer than any clock can count with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings(ServeValues):
    """The settings in force, and what the engine takes for them."""

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
        """Requests decoded at the same time."""
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
        for name, value in changes.items():
            if name not in SETTINGS:
                raise InvalidParams(name, "is no setting")
            if SETTINGS[name].change is not Mutability.CHANGEABLE:
                raise InvalidParams(name, f"is {SETTINGS[name].change}: it takes a restart")
            kind = type(SETTINGS[name].default)
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
    for name in SETTINGS:
        value = getattr(options, name)
        if value is not None:
            values[name] = tuple(value) if isinstance(value, list) else value
    return ServeSettings(**values)


def settings_report(settings: ServeSettings) -> dict[str, dict[str, object]]:
    """Every setting for ``/v1/settings``: value, default, class and variable; no secrets."""
    report: dict[str, dict[str, object]] = {}
    for name, setting in SETTINGS.items():
        value = getattr(settings, name)
        report[name] = {
            "value": ("set" if value else "not set") if setting.is_secret else _plain(value),
            "default": None if setting.is_secret else _plain(setting.default),
            "change": setting.change.value,
            "variable": f"MLXCEL_{name.upper()}",
        }
    return report


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
