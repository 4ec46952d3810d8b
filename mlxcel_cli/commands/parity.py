"""``mlxcel parity``: do all ways to get an answer generate the same tokens?"""

from mlxcel_cli.command_lines import ParityCommand
from mlxcel_cli.option_groups import takes_groups

EXAMPLES = """
Examples:
  mlxcel parity
  mlxcel parity ./my-model --cases greedy --variants engine,batch,mlx-lm -n 128
  mlxcel parity qwen3 --prompts prompts.txt --json
  MLXCEL_DETERMINISTIC=1 mlxcel parity --gap 0
  mlxcel parity --teacher-forced

Each variant is compared with the first one. A difference within --gap is a near-tie: it is
shown, and is no failure. Exit status 1: a difference is larger. Variants and cases: docs/parity.md.
"""


@takes_groups
def parity(command: ParityCommand) -> int:
    """Compare the tokens of every way to get an answer.

    The engine alone, in a batch, with prompt lookup, over cached and restored state, and mlx-lm's
    own loop answer the same prompts; where two differ, mlx-lm's logits say by how much.
    """
    # Imported here: --help must not load the engine.
    from mlxcel_cli.parity.run import check_parity

    return check_parity(command)
