"""``mlxcel serve``: a local endpoint for editors, scripts and libraries."""

from mlxcel_cli.command_lines import ServeCommand
from mlxcel_cli.option_groups import takes_groups

EXAMPLES = """
Examples:
  mlxcel serve
  mlxcel serve -m qwen3 --port 8000 --parallel 8
  mlxcel serve --host 0.0.0.0 --api-key-file keys.txt --access-log json
  curl http://127.0.0.1:8080/v1/chat/completions -H "Content-Type: application/json" \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'

Endpoints, fields and errors: docs/server.md. Sampling options are the defaults of requests that
leave them open; without them the model's generation_config counts.
"""


@takes_groups
def serve(command: ServeCommand) -> int:
    """Serve a model over HTTP, in the shape of OpenAI's API.

    What is loaded, where it listens and each request are logged on stderr. SIGINT and SIGTERM let
    running requests finish first.
    """
    # Imported here: --help must not load the engine.
    from mlxcel_cli.serve.lifecycle import serve as run_server

    return run_server(command)
