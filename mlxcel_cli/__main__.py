"""``python -m mlxcel_cli`` is ``mlxcel``."""

from mlxcel_cli.app import main

main()
