from engine.lookup.stats import LookupStats


def test_the_line_is_key_value_pairs_with_rates_of_four_decimals():
    stats = LookupStats(
        rounds=30,
        drafted_rounds=12,
        paused_rounds=4,
        proposed=60,
        accepted=40,
        shadow_confirmations=1,
    )
    assert stats.line(generated_tokens=71) == (
        "[Prompt lookup] rounds=30 drafted_rounds=12 paused_rounds=4 proposed=60 accepted=40 "
        "acceptance_rate=0.6667 tokens_per_forward=2.3333 shadow_confirmations=1"
    )


def test_rates_without_rounds_are_zero():
    assert LookupStats().acceptance_rate == 0
    assert LookupStats().tokens_per_forward(1) == 0


def test_a_retracted_ask_leaves_the_counts_as_they_were():
    before = LookupStats(rounds=3, drafted_rounds=1, paused_rounds=1, proposed=7)
    for drafted, paused in ((5, False), (0, True), (0, False)):
        after = before.after_ask(drafted, is_paused=paused)
        assert after.rounds == 4
        assert after.before_ask(drafted, was_paused=paused) == before
