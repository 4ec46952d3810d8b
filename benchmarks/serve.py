"""mlxcel serve against mlx_lm.server: same dense float32 weights, BLAS and load, interleaved.

    python -m benchmarks.serve                                  # everything, short
    python -m benchmarks.serve --only throughput --rounds 5
    python -m benchmarks.serve --only lookup --prompt-style copy --rounds 5

Parts
    throughput   aggregate tokens/s at concurrency 1, 4, 8, 16
    first-token  TTFT of a short request while 4 others decode, and with a long prompt in prefill
    single       one served stream against our own engine, with a null run
    loop         event-loop lag under 64 streams, and what a token costs the loop
    lookup       prompt lookup off and on, at concurrency 1, 2, 4, 8
    second-turn  a second turn, warm and cold, and decoding after a hit
    conversations  64 conversations that overflow the prompt cache: memory and what is reused

Servers run in processes of their own and end with this one. ``OPENBLAS_NUM_THREADS`` counts for
all of them; without it each gets the threads that are free when this starts.
"""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks import serve_conversations, serve_latency, serve_memory, serve_speed
from benchmarks.serve_speed import Plan
from benchmarks.server_process import THREADS, end_children_on_signals, environment
from benchmarks.starter_weights import starter_weights
from benchmarks.tables import note

PARTS: dict[str, Callable[[Plan], Coroutine[Any, Any, None]]] = {
    "throughput": serve_speed.throughput,
    "first-token": serve_latency.first_token,
    "single": serve_speed.single,
    "loop": serve_latency.loop,
    "lookup": serve_memory.lookup,
    "second-turn": serve_memory.second_turn,
    "conversations": serve_conversations.conversations,
}


def main() -> None:
    """Run the asked parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given several times")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each variant; turns of conversations (default: 3)"
    )
    parser.add_argument("--new-tokens", type=int, default=64, help="of an answer (default: 64)")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", help="of throughput and lookup (default: the parts')"
    )
    parser.add_argument(
        "--prompt-style", choices=("plain", "copy"), help="of lookup (default: both)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int,
        help="of first-token's and second-turn's long prompts, and of conversations' first turns",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-cache-bytes", type=int, help="of conversations (default: 256 MiB)"
    )
    parser.add_argument(
        "--peer-flags", default="", help='of mlx_lm.server, as "--prefill-step-size 512"'
    )
    parser.add_argument(
        "--lookup-flags",
        default="",
        help='of the variant that drafts, as "--prompt-lookup-max-batch 8"',
    )
    options = parser.parse_args()
    end_children_on_signals()
    threads = environment()[THREADS]
    print(f"BLAS threads of each server: {threads}", flush=True)
    model = starter_weights().dense
    styles = [options.prompt_style] if options.prompt_style else ["plain", "copy"]
    for name in options.only or PARTS:
        for style in styles if name == "lookup" else styles[:1]:
            plan = Plan(
                model=model,
                rounds=options.rounds,
                new_tokens=options.new_tokens,
                concurrency=options.concurrency,
                peer_flags=options.peer_flags.split(),
                lookup_flags=options.lookup_flags.split(),
                prompt_tokens=options.prompt_tokens,
                prompt_style=style,
                prompt_cache_bytes=options.prompt_cache_bytes,
            )
            try:
                asyncio.run(PARTS[name](plan))
            except RuntimeError as error:
                note(f"{name} failed: {error}")


if __name__ == "__main__":
    main()
