from engine.models.progress import Progress, no_report


def test_a_report_is_a_plain_value():
    assert Progress("converting", 1, None) == Progress(stage="converting", done=1, total=None)


def test_reports_may_go_nowhere():
    assert no_report(Progress("converting", 0, None)) is None
