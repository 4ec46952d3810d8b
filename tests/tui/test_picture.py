"""The README's picture shows the chat as it is."""

from tests.tui.picture import PICTURE, picture, words


def test_the_picture_in_the_tree_says_what_the_screen_says():
    kept, drawn = words(PICTURE.read_text(encoding="utf-8")), words(picture())
    assert "mlxcel chat" in drawn
    assert drawn == kept, "make picture draws it anew"


def test_the_picture_fetches_nothing():
    svg = picture()
    assert "url(" not in svg.replace("url(#", "")
    assert svg.count("http") == svg.count("http://www.w3.org/") + svg.count(
        "https://www.textualize"
    )
