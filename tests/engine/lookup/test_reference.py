from engine.lookup.reference import ReferenceText
from engine.params import SpeculationParams


def test_a_reference_is_indexed_once_in_the_range_of_its_params():
    reference = ReferenceText.from_tokens("notes", (1, 2, 3, 4), SpeculationParams())
    match = reference.index.match((2, 3))
    assert reference.name == "notes"
    assert match is not None
    assert reference.index.after(match, 7) == (4,)


def test_the_end_of_a_reference_has_no_follower():
    reference = ReferenceText.from_tokens("notes", (1, 2, 3, 4), SpeculationParams())
    assert reference.index.match((3, 4)) is None


def test_an_empty_reference_gives_nothing():
    reference = ReferenceText.from_tokens("empty", (), SpeculationParams())
    assert reference.index.match((1, 2)) is None
