"""Our own engine without a server, as a process that stays: one answer a line, greedy.

    python -m benchmarks.peer_engine FOLDER

Takes JSON lines ``{"prompt": [ids], "max_tokens": n}`` and prints ``{"per_second": r, "gaps_s":
[...]}``, counted as a client of the server does it: tokens after the first over the time from first
to last text, and the times between two texts.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import platformdirs

from engine.runtime.blas import prepare_blas


def main() -> None:
    """Answer until stdin ends."""
    prepare_blas(platformdirs.user_cache_path("mlxcel-benchmarks"), None, None)
    from engine.engine import Engine
    from engine.events import Delta
    from engine.models.load import LoadOptions, WeightForm, load
    from engine.params import SequenceParams
    from engine.session import Session

    loaded = load(Path(sys.argv[1]), LoadOptions(form=WeightForm.DENSE))
    session = Session(Engine(loaded))
    for line in sys.stdin:
        asked = json.loads(line)
        params = SequenceParams(
            tuple(asked["prompt"]), max_tokens=asked["max_tokens"], ignore_eos=True
        )
        events = session.generate(params)
        at = [(time.perf_counter(), e.completion_tokens) for e in events if isinstance(e, Delta)]
        tokens = at[-1][1] - at[0][1]
        gaps = [later[0] - sooner[0] for sooner, later in pairwise(at)]
        figures = {"per_second": tokens / (at[-1][0] - at[0][0]), "gaps_s": gaps}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
