"""Reports are one page that needs nothing else, readable on a phone, in the dark, and as text."""

import re

import pandas as pd
import pytest
from matplotlib.figure import Figure

from lengthwise.errors import DataError
from lengthwise.report_page import ReportSection, page_text, write_page, write_report


def a_figure() -> Figure:
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot([1, 2], [3, 4])
    return figure


def a_page(**section: object) -> str:
    sections = [ReportSection(heading="H", **section)]
    return page_text(title="A title", lead="A lead", sections=sections)


def test_a_report_needs_no_other_file():
    page = a_page(figure=a_figure(), caption="three requests")
    assert "<svg" in page
    assert "viewport" in page
    for outside in ("<script", "<link", "<img", 'src="http'):
        assert outside not in page


def test_text_is_escaped_and_paragraphs_stay():
    page = a_page(text="First <of> all.\n\nSecond.", caption="")
    assert "<p>First &lt;of&gt; all.</p><p>Second.</p>" in page


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1234.5678, None, float("nan")], ["1,235", "-", "-"]),
        ([0.0123, 0.5, 4.0], ["0.0123", "0.5000", "4.0000"]),
        ([2.0, 4.0, 8.0], ["2", "4", "8"]),
        ([0.3, 28.123], ["0.30", "28.12"]),
        (["a", 3, 0.25], ["a", "3", "0.250"]),
    ],
)
def test_numbers_of_a_column_have_equally_many_decimals(values, shown):
    assert re.findall("<td[^>]*>(.*?)</td>", a_page(table=pd.DataFrame({"x": values}))) == shown


def test_panels_are_figures_of_their_own():
    page = a_page(figure=[a_figure(), a_figure()])
    assert page.count("<svg") == 2
    assert page.count("<figure>") == 1


def test_the_footer_says_what_made_the_page(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-m", "scheduler_adapters", "a b"])
    footer = a_page().partition("<footer>")[2]
    assert "python -m scheduler_adapters &#x27;a b&#x27;" in footer
    assert "1970-01-01" in footer


def test_equal_reports_have_equal_bytes():
    assert a_page(figure=a_figure()) == a_page(figure=a_figure())


def test_a_column_of_words_is_read_from_the_left():
    rows = [["pars", 1.5, "3.4x", "python -m training"], ["fcfs", 2.5, "1.0x", None]]
    page = a_page(table=pd.DataFrame(rows, columns=["policy", "s", "times", "command"]))
    assert re.findall("<th([^>]*)>", page) == [' class="text"', "", "", ' class="text"']
    assert page.count('<td class="text">') == 4


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(DataError, match=r"report\.html"):
        write_page(blocked / "report.html", "")
    assert list(tmp_path.iterdir()) == [blocked]


def test_a_figure_that_was_drawn_from_a_table_lies_beside_it(tmp_path):
    table = pd.DataFrame({"value": [3.0, 1.0]})
    drawn = ReportSection(heading="a", figure=[a_figure(), a_figure()], drawn=("latency", table))
    plain = ReportSection(heading="b", figure=a_figure())
    files = write_report(tmp_path / "new", title="t", lead="l", sections=[drawn, plain])
    assert [file.name for file in files] == ["report.html", "latency.csv", "latency.svg"]
    assert {*files} == {*(tmp_path / "new").iterdir()}
    assert pd.read_csv(files[1])["value"].tolist() == [3.0, 1.0]
