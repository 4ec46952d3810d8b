"""``python -m mlxcel_cli`` is ``mlxcel``."""

from mlxcel_cli.entry_point import main

if __name__ == "__main__":
    main()
