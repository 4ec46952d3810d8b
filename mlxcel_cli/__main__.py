"""``python -m mlxcel_cli`` is ``mlxcel``."""

from mlxcel_cli.door import main

if __name__ == "__main__":
    main()
