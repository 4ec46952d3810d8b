"""How the arrays of a pool grow: one rule for the pool itself and for the plan of a KV budget."""


def grown_capacity(capacity: int, tokens: int, step: int) -> int:
    """Positions of a pool of ``capacity`` once a row holds ``tokens``: a multiple of ``step``.

    Long rows grow by an eighth: growing by a step at a time would copy a 100K-token row 400 times.
    """
    if tokens <= capacity:
        return capacity
    wanted = max(tokens, capacity + capacity // 8)
    return -(-wanted // step) * step
