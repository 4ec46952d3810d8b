"""``mlxcel parity``: answers in every way there is, and compares the tokens."""
