"""What `mlx_lm.generate` does, as a process of its own that prints its figures as JSON.

    python -m benchmarks.peer_mlx_lm FOLDER PROMPT_IDS.json MAX_TOKENS [--blas CACHE]

With --blas it gets the BLAS that mlxcel uses; without, MLX as pip installs it.
"""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Generate greedily and print one JSON line."""
    folder, prompt_file, max_tokens = sys.argv[1:4]
    if "--blas" in sys.argv:
        from engine.runtime.blas import prepare_blas

        prepare_blas(Path(sys.argv[sys.argv.index("--blas") + 1]), None, None)
    import mlx.core as mx
    from mlx_lm import load, stream_generate

    model, tokenizer = load(folder)
    tokenizer.eos_token_ids = set()  # equal lengths for all
    prompt = json.loads(Path(prompt_file).read_text())
    first = None
    tokens = []
    for response in stream_generate(model, tokenizer, prompt, max_tokens=int(max_tokens)):
        first = first or time.time()
        tokens.append(response.token)
    print(
        json.dumps(
            {
                "first_at": first,
                "tokens": tokens,
                "prompt_per_second": response.prompt_tps,
                # stream_generate's own rate counts the first token, whose time is the prefill's.
                "predicted_per_second": response.generation_tps * (len(tokens) - 1) / len(tokens),
                "mlx_peak_bytes": mx.get_peak_memory(),
            }
        )
    )


if __name__ == "__main__":
    main()
