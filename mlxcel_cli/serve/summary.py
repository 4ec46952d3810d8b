"""What a server says of itself when it starts."""

from collections.abc import Iterator, Sequence

from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.settings import ServeSettings, settings_report


def summary_lines(
    model: ServedModel, settings: ServeSettings, *, names: Sequence[str], verbose: bool
) -> Iterator[str]:
    """Model, memory, slots, and the settings that are not the defaults; all with ``verbose``."""
    facts = model.facts
    yield from model.warnings
    form = facts.quantization or facts.dtype
    yield (
        f"{facts.name} ({facts.family}, {form}, {facts.weight_bytes / 2**20:.0f} MiB), "
        f"loaded in {model.load_s:.1f} s, served as {', '.join(names)}"
    )
    budget = "unbounded" if model.kv_budget_tokens is None else f"{model.kv_budget_tokens} tokens"
    yield (
        f"{settings.slots} slots, {model.context_tokens} tokens of context each, "
        f"{settings.max_queue_depth} may wait, KV {budget} "
        f"({facts.kv_bytes_per_token / 1024:.1f} KiB a token)"
    )
    if (drafts := settings.speculation) is not None:
        yield (
            f"drafts: {settings.draft_kind}, up to {drafts.max_draft} tokens, policy "
            f"{drafts.policy}, while at most {settings.prompt_lookup_max_batch} answers run"
        )
    if verbose:
        yield str(facts.path)
        yield from model.notes
    for name, row in settings_report(settings).items():
        if verbose or row["value"] not in (row["default"], "not set"):
            yield f"{name.replace('_', '-')}: {row['value']}"
    if not settings.api_key and settings.api_key_file is None and settings.socket_path is None:
        is_local = settings.host in ("127.0.0.1", "localhost", "::1")
        if not is_local:
            yield f"anyone who reaches {settings.host} may ask: --api-key guards the server"
