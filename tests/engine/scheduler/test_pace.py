from engine.scheduler.pipeline import MARGIN_S, REMEMBERED_STEPS, StepPace


def paced(*steps_s: float, host_s: float = 0.002, is_steady: bool = True) -> tuple[StepPace, float]:
    """A pace that saw these steps, the device always busy, and the time then."""
    pace, now_s = StepPace(), 100.0
    pace.note(began_s=now_s, submitted_s=now_s, read_s=now_s, is_steady=True)
    for step_s in steps_s:
        pace.note(
            began_s=now_s,
            submitted_s=now_s + host_s,
            read_s=now_s + step_s,
            is_steady=is_steady,
        )
        now_s += step_s
    return pace, now_s


def test_slack_is_what_a_step_takes_less_twice_the_host_s_part():
    pace, now_s = paced(*[0.05] * 6)
    assert abs(pace.slack_s(now_s) - (0.05 - 0.004 - MARGIN_S)) < 1e-9
    assert abs(pace.slack_s(now_s + 0.02) - (0.03 - 0.004 - MARGIN_S)) < 1e-9
    assert pace.slack_s(now_s + 1) == 0.0


def test_the_shortest_step_counts():
    pace, now_s = paced(0.05, 0.05, 0.03, 0.05, 0.05)
    assert pace.slack_s(now_s) < 0.03


def test_old_steps_are_forgotten():
    pace, now_s = paced(0.01, *[0.05] * REMEMBERED_STEPS)
    assert pace.slack_s(now_s) > 0.04


def test_a_few_steps_say_nothing():
    pace, now_s = paced(*[0.05] * (REMEMBERED_STEPS // 2 - 1))
    assert pace.slack_s(now_s) == 0.0


def test_other_rows_start_anew():
    pace, now_s = paced(*[0.05] * 6)
    pace.note(began_s=now_s, submitted_s=now_s, read_s=now_s + 0.05, is_steady=False)
    assert pace.slack_s(now_s + 0.05) == 0.0


def test_a_read_that_did_not_block_found_a_dry_device_and_starts_anew():
    """Else too long an estimate would prove itself right."""
    pace, now_s = paced(*[0.05] * 6)
    pace.note(began_s=now_s + 0.2, submitted_s=now_s + 0.2, read_s=now_s + 0.201, is_steady=True)
    assert pace.slack_s(now_s + 0.201) == 0.0
