"""`mlx_lm.server` with the BLAS that mlxcel uses, and answers of equal length.

    python -m benchmarks.peer_mlx_lm_server CACHE --model FOLDER --port PORT [its own flags]

Apart from the BLAS two things differ from the command: no token ends an answer (mlx-lm has no
``ignore_eos``), and its listen backlog of 5 is raised, so that sixteen clients can connect at once.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

BACKLOG = 128


def main() -> None:
    """Run mlx-lm's own main function."""
    from engine.runtime.blas import prepare_blas

    prepare_blas(Path(sys.argv.pop(1)), None, None)
    from mlx_lm import server

    load = server.load

    def endless(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        loaded[1].eos_token_ids = set()
        return loaded

    server.load = endless
    server.ThreadingHTTPServer.request_queue_size = BACKLOG
    server.APIHandler.log_message = lambda *_: None  # as --access-log off
    warnings.simplefilter("ignore")
    server.main()


if __name__ == "__main__":
    main()
