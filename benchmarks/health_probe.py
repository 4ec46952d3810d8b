"""Asks a server's /health every 50 ms from a process of its own; prints the milliseconds as JSON.

    python -m benchmarks.health_probe HOST:PORT SECONDS

SIGTERM ends it earlier.
"""

import http.client
import json
import signal
import sys
import threading
import time

PAUSE_S = 0.05


def main() -> None:
    """Ask on one kept connection until the time is over."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    end = time.monotonic() + float(sys.argv[2])
    taken = []
    while time.monotonic() < end and not stopped.wait(PAUSE_S):
        started = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        taken.append((time.perf_counter() - started) * 1e3)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
