"""``mlxcel serve``: a local endpoint for editors, scripts and libraries."""

from mlxcel_cli.option_groups import takes_groups
from mlxcel_cli.options import Config, MaxTokens, ModelOptions, Verbose
from mlxcel_cli.sampling_options import SamplingOptions
from mlxcel_cli.serve_options import ServeOptions

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
def serve(
    model: ModelOptions,
    serve: ServeOptions,
    sampling: SamplingOptions,
    max_tokens: MaxTokens = None,
    verbose: Verbose = None,
    config: Config = None,
) -> int:
    """Serve a model over HTTP, in the shape of OpenAI's API.

    What is loaded, where it listens and each request are told on stderr. SIGINT and SIGTERM let
    running answers end first.
    """
    # Behind the door stands what --help must not pay for.
    from mlxcel_cli.serve.lifecycle import ServeLine
    from mlxcel_cli.serve.lifecycle import serve as run_server

    line = ServeLine(
        model=model, serve=serve, sampling=sampling, max_tokens=max_tokens, verbose=verbose
    )
    return run_server(line, config)
