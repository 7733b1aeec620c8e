"""The choice of a layer, a head and a token in attention maps."""

import numpy as np
import pytest
from command import fails

from mha_text.cli.attend.maps import AttentionMaps, Choice


def pointing(at, count=6):
    """A map in which every token looks at one."""
    weights = np.full((count, count), 0.01, dtype=np.float32)
    weights[:, at] = 1
    return weights


@pytest.mark.parametrize(
    ("tokens", "weights", "layer"),
    [
        pytest.param("a b c d e f", [np.eye(6), np.eye(6, k=1) + np.eye(6, k=-1), pointing(1)], 2, id="a far word"),
        pytest.param("[S] b c d e f", [pointing(0), pointing(3)], 1, id="no special token"),
        pytest.param("a b c d e .", [pointing(5), pointing(3)], 1, id="no punctuation"),
        pytest.param("[S] b c . , !", [pointing(3), pointing(1)], 1, id="neighbours, if there are no others"),
        pytest.param("[S] . . . . !", [pointing(3) / 2, pointing(1)], 1, id="any token, if there is no word"),
        pytest.param("a b c d e f", [pointing(1), pointing(1)], 0, id="the first of equals"),
    ],
)
def test_the_most_telling_head_singles_out(tokens, weights, layer):
    words = tuple(tokens.split())
    special = tuple(word == "[S]" for word in words)
    assert Choice(None, None).one(AttentionMaps("", words, special, np.asarray(weights)[:, None], "", "")) == (layer, 0)


def test_a_token_must_be_in_the_text_once_and_is_selected_only_in_a_page(tiny_model, tmp_path):
    attend = ("attend", "a bird a", "--model", tiny_model, "--output", tmp_path / "page.html")
    every = "0 [CLS], 1 a, 2 bird, 3 a, 4 [SEP]"
    for token, message in (
        ("tree", f"'tree', not one of the tokens; give one of the numbers: {every}"),
        ("5", f"'5', not one of the tokens; give one of the numbers: {every}"),
        ("a", "'a', several tokens; give one of the numbers: 1 a, 3 a"),
    ):
        assert fails(1, *attend, "--token", token) == f"error: --token is {message}\n"
    assert not (tmp_path / "page.html").exists()
    for output in ("-", tmp_path / "maps.png"):
        assert "--token: is selected in a page: add --output page.html" in fails(2, *attend, "--output", output, "--token", 1)
