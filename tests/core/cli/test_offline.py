"""Pages that open offline: their templates escape values, include other files, and refuse missing values."""

import jinja2
import pytest

from mha_core.cli.offline import render


@pytest.fixture
def folder(tmp_path):
    """The folder of a page that includes a style sheet."""
    (tmp_path / "page.html.j2").write_text("{% if text %}\n{{ text }}\n{% endif %}\n{% include 'page.css' %}", encoding="utf-8")
    (tmp_path / "page.css").write_text("p { color: red }", encoding="utf-8")
    return tmp_path


def test_values_are_escaped_and_included_files_are_not_and_a_missing_value_is_an_error(folder):
    assert render(folder, text="<b> & 'c'") == "&lt;b&gt; &amp; &#39;c&#39;\np { color: red }"
    with pytest.raises(jinja2.UndefinedError, match="'text' is undefined"):
        render(folder)


def test_plotly_is_part_of_the_page(folder):
    (folder / "page.html.j2").write_text("{{ plotly | safe }}", encoding="utf-8")
    assert "Plotly" in render(folder)
