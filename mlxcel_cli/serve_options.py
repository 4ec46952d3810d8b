"""Every setting of ``mlxcel serve``, once: spelling, help, default, and whether it may change.

The command's help, the configuration page, the start-up summary and ``/v1/settings`` all read
this table. None means "not given"; ``mlxcel_cli/serve/settings.py`` then takes the default.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from mlxcel_cli.draft_options import DraftOptions
from mlxcel_cli.options import NETWORK, ApiKeys
from mlxcel_cli.setting import Change, Setting

SERVED = "What is served"
BATCH = "Batch"
CACHE = "Prompt cache"
LIFE = "Life and streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(DraftOptions):
    """The options of ``serve`` that no other command has."""

    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="HOST", rich_help_panel=NETWORK,
            help="Address to listen on; one that ends in .sock is a Unix socket's path. "
            "Default: 127.0.0.1.",
        ),
        Setting(Change.START_UP, "127.0.0.1"),
    ] = None  # fmt: skip
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", rich_help_panel=NETWORK,
            help="Port to listen on; 0 takes a free one and prints it. Default: 8080.",
        ),
        Setting(Change.START_UP, 8080),
    ] = None  # fmt: skip
    unix: Annotated[
        Path | None,
        typer.Option(
            "--unix", metavar="PATH", rich_help_panel=NETWORK,
            help="Listen on a Unix socket instead of a port.",
        ),
        Setting(Change.START_UP, None),
    ] = None  # fmt: skip
    api_key: Annotated[ApiKeys, Setting(Change.START_UP, (), is_secret=True)] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", metavar="FILE", rich_help_panel=NETWORK,
            help="More keys, one a line.",
        ),
        Setting(Change.START_UP, None),
    ] = None  # fmt: skip
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin", metavar="ORIGIN", rich_help_panel=NETWORK,
            help="Web pages of this origin may ask (https://example.org); may be given several "
            'times, "none" allows no page. Default: any origin.',
        ),
        Setting(Change.READ_ONLY, ("*",)),
    ] = None  # fmt: skip
    ssl_cert_file: Annotated[
        Path | None,
        typer.Option(
            "--ssl-cert-file", metavar="FILE", rich_help_panel=NETWORK,
            help="Serve HTTPS with this certificate chain (PEM).",
        ),
        Setting(Change.START_UP, None),
    ] = None  # fmt: skip
    ssl_key_file: Annotated[
        Path | None,
        typer.Option(
            "--ssl-key-file", metavar="FILE", rich_help_panel=NETWORK,
            help="The certificate's private key (PEM).",
        ),
        Setting(Change.START_UP, None),
    ] = None  # fmt: skip
    max_body_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-body-bytes", metavar="N", rich_help_panel=NETWORK,
            help="Longest request body that is read. Default: 16777216.",
        ),
        Setting(Change.READ_ONLY, 16 * 2**20),
    ] = None  # fmt: skip
    access_log: Annotated[
        str | None,
        typer.Option(
            "--access-log", metavar="plain|json|off", rich_help_panel=NETWORK,
            help="Tell each request on stderr: as a line, as a JSON object, or not at all. "
            "Default: plain.",
        ),
        Setting(Change.CHANGEABLE, "plain"),
    ] = None  # fmt: skip

    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias", metavar="NAME", rich_help_panel=SERVED,
            help="Name under which the model is served, beside its own; may be given several "
            "times, the first is the one it is listed by.",
        ),
        Setting(Change.READ_ONLY, ()),
    ] = None  # fmt: skip
    reasoning_format: Annotated[
        str | None,
        typer.Option(
            "--reasoning-format", metavar="auto|deepseek|none", rich_help_panel=SERVED,
            help="Where a reasoning model's thoughts go: into reasoning_content (auto and "
            "deepseek), or with their marks into content (none). Default: auto.",
        ),
        Setting(Change.READ_ONLY, "auto"),
    ] = None  # fmt: skip

    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel", "--max-batch-size", metavar="N", rich_help_panel=BATCH,
            help="Answers that are written at the same time. Default: 4.",
        ),
        Setting(Change.READ_ONLY, 4),
    ] = None  # fmt: skip
    no_batch: Annotated[
        bool | None,
        typer.Option(
            "--no-batch/--batch", rich_help_panel=BATCH,
            help="Write one answer after the other, as --parallel 1.",
        ),
        Setting(Change.READ_ONLY, default=False),
    ] = None  # fmt: skip
    max_queue_depth: Annotated[
        int | None,
        typer.Option(
            "--max-queue-depth", metavar="N", rich_help_panel=BATCH,
            help="Requests that may wait for their turn; more are refused (503). Default: 32.",
        ),
        Setting(Change.READ_ONLY, 32),
    ] = None  # fmt: skip
    kv_cache_budget: Annotated[
        str | None,
        typer.Option(
            "--kv-cache-budget", metavar="auto|N", rich_help_panel=BATCH,
            help="Tokens of KV that all answers together may take: a number, or auto, what free "
            "memory holds. Default: auto.",
        ),
        Setting(Change.READ_ONLY, "auto"),
    ] = None  # fmt: skip
    max_kv_size: Annotated[
        int | None,
        typer.Option(
            "--max-kv-size", metavar="N", rich_help_panel=BATCH,
            help="Most tokens of KV of one answer: a bound on prompt and answer together, as "
            "--ctx-size. Default: the model's context.",
        ),
        Setting(Change.READ_ONLY, None),
    ] = None  # fmt: skip
    prefill_chunk_size: Annotated[
        int | None,
        typer.Option(
            "--prefill-chunk-size", metavar="N", rich_help_panel=BATCH,
            help="Most prompt tokens of one forward; 0 is the whole prompt. Default: measured, "
            "about half a second's worth.",
        ),
        Setting(Change.READ_ONLY, None),
    ] = None  # fmt: skip
    prefill_grant_interval: Annotated[
        int | None,
        typer.Option(
            "--prefill-grant-interval", metavar="N", rich_help_panel=BATCH,
            help="Steps of running answers for each piece of a long prompt, which is then read in "
            "smaller parts that come as much sooner; 0: none while any runs. Default: 16.",
        ),
        Setting(Change.READ_ONLY, 16),
    ] = None  # fmt: skip
    enable_preemption: Annotated[
        bool | None,
        typer.Option(
            "--enable-preemption/--no-enable-preemption", rich_help_panel=BATCH,
            help="Let running answers give way to others and go on later.",
        ),
        Setting(Change.READ_ONLY, default=False),
    ] = None  # fmt: skip
    preemption_policy: Annotated[
        str | None,
        typer.Option(
            "--preemption-policy", metavar="POLICY", rich_help_panel=BATCH,
            help="Who gives way first: longest-first or lowest-priority. Default: longest-first.",
        ),
        Setting(Change.READ_ONLY, "longest-first"),
    ] = None  # fmt: skip
    context_shift: Annotated[
        bool | None,
        typer.Option(
            "--context-shift/--no-context-shift", rich_help_panel=BATCH,
            help="Not supported: a full context ends the answer.",
        ),
        Setting(Change.READ_ONLY, default=False),
    ] = None  # fmt: skip
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", rich_help_panel=BATCH,
            help="Not supported, as --context-shift. Default: 0.",
        ),
        Setting(Change.READ_ONLY, 0),
    ] = None  # fmt: skip

    prompt_cache: Annotated[
        bool | None,
        typer.Option(
            "--prompt-cache/--no-prompt-cache", rich_help_panel=CACHE,
            help="Remember prompts and answers, so that one that begins alike is read only from "
            "where it is new. Default: --prompt-cache.",
        ),
        Setting(Change.READ_ONLY, default=True),
    ] = None  # fmt: skip
    prompt_cache_bytes: Annotated[
        int | None,
        typer.Option(
            "--prompt-cache-bytes", metavar="N", rich_help_panel=CACHE,
            help="Most memory it takes; what was not used for longest goes first. "
            "Default: 2147483648.",
        ),
        Setting(Change.READ_ONLY, 2 * 2**30),
    ] = None  # fmt: skip
    prompt_cache_entries: Annotated[
        int | None,
        typer.Option(
            "--prompt-cache-entries", metavar="N", rich_help_panel=CACHE,
            help="Most texts that are remembered. Default: 1024.",
        ),
        Setting(Change.READ_ONLY, 1024),
    ] = None  # fmt: skip
    prompt_cache_ttl: Annotated[
        float | None,
        typer.Option(
            "--prompt-cache-ttl", metavar="S", rich_help_panel=CACHE,
            help="Seconds after its last use at which a text is forgotten; 0 is never. "
            "Default: 3600.",
        ),
        Setting(Change.READ_ONLY, 3600.0),
    ] = None  # fmt: skip
    prompt_cache_min_tokens: Annotated[
        int | None,
        typer.Option(
            "--prompt-cache-min-tokens", metavar="N", rich_help_panel=CACHE,
            help="Shortest common beginning that is used. Default: 32.",
        ),
        Setting(Change.READ_ONLY, 32),
    ] = None  # fmt: skip
    prompt_cache_dir: Annotated[
        Path | None,
        typer.Option(
            "--prompt-cache-dir", metavar="FOLDER", rich_help_panel=CACHE,
            help="Keep what is remembered in this folder too, past a restart. It holds what users "
            "wrote, in a form that can be read back. Default: memory only.",
        ),
        Setting(Change.READ_ONLY, None),
    ] = None  # fmt: skip
    prompt_cache_dir_bytes: Annotated[
        int | None,
        typer.Option(
            "--prompt-cache-dir-bytes", metavar="N", rich_help_panel=CACHE,
            help="Most bytes of that folder's files. Default: 8589934592.",
        ),
        Setting(Change.READ_ONLY, 8 * 2**30),
    ] = None  # fmt: skip

    warmup: Annotated[
        bool | None,
        typer.Option(
            "--warmup/--no-warmup", rich_help_panel=LIFE,
            help="Answer one short prompt before the first client does. Default: --warmup.",
        ),
        Setting(Change.START_UP, default=True),
    ] = None  # fmt: skip
    idle_unload: Annotated[
        float | None,
        typer.Option(
            "--idle-unload", metavar="MIN", rich_help_panel=LIFE,
            help="Free the model after so many minutes without a request; the next one loads it "
            "again. 0 is never. Default: 0.",
        ),
        Setting(Change.CHANGEABLE, 0.0),
    ] = None  # fmt: skip
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            "--drain-timeout", metavar="S", rich_help_panel=LIFE,
            help="Seconds that running answers have to end after SIGINT or SIGTERM; a second "
            "signal ends them at once. Default: 5.",
        ),
        Setting(Change.CHANGEABLE, 5.0),
    ] = None  # fmt: skip
    endpoint_slots: Annotated[
        bool | None,
        typer.Option(
            "--slots/--no-slots", rich_help_panel=LIFE,
            help="Show at GET /slots what each slot does. Default: --slots.",
        ),
        Setting(Change.READ_ONLY, default=True),
    ] = None  # fmt: skip
    endpoint_props: Annotated[
        bool | None,
        typer.Option(
            "--props/--no-props", rich_help_panel=LIFE,
            help="Take POST /props, which changes nothing; GET /props is always there.",
        ),
        Setting(Change.READ_ONLY, default=False),
    ] = None  # fmt: skip
    sse_ping_interval: Annotated[
        float | None,
        typer.Option(
            "--sse-ping-interval", metavar="S", rich_help_panel=LIFE,
            help="Seconds of silence after which a stream carries a comment, so that nobody "
            "takes it for dead; -1 is never. Default: 30.",
        ),
        Setting(Change.CHANGEABLE, 30.0),
    ] = None  # fmt: skip
    slow_reader_timeout: Annotated[
        float | None,
        typer.Option(
            "--slow-reader-timeout", metavar="S", rich_help_panel=LIFE,
            help="Seconds after which a client that does not read its stream is dropped; its "
            "answer waits until then. Default: 30.",
        ),
        Setting(Change.CHANGEABLE, 30.0),
    ] = None  # fmt: skip


def settings_table() -> dict[str, Setting]:
    """Every setting by its key, in the order of the help page.

    Raises:
        TypeError: an option of ``ServeOptions`` is not classified.
    """
    hints: dict[str, Any] = get_type_hints(ServeOptions, include_extras=True)
    table: dict[str, Setting] = {}
    for name, hint in hints.items():
        found = [one for one in hint.__metadata__ if isinstance(one, Setting)]
        if len(found) != 1:
            raise TypeError(f"ServeOptions.{name} must carry one Setting")
        table[name] = found[0]
    return table
