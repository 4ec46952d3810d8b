from engine.health import FAILURES_ALLOWED, Health


def test_too_many_failures_in_a_row_are_the_end():
    health = Health()
    for _ in range(FAILURES_ALLOWED - 1):
        health.failed()
    assert health.ok
    health.failed()
    assert not health.ok


def test_any_success_starts_the_count_again():
    health = Health()
    for _ in range(FAILURES_ALLOWED - 1):
        health.failed()
    health.succeeded()
    health.failed()
    assert health.failures == 1
    assert health.ok
