"""A row that is measured again replaces the old one; the others stay."""

import pytest

from support.benchmark_page import PAGE, merged

OLD = """# Benchmarks

<!-- table: losses -->
| what | seconds | measured |
| --- | --- | --- |
| a pod | 11.0 | May |
| a node | 20.0 | May |

After it.
"""


def test_a_row_takes_the_place_of_the_one_with_its_first_cell_and_a_new_one_is_the_last():
    new = merged(OLD, "losses", [("a node", "19.0", "June"), ("a head", "18.0", "June")])
    assert new == OLD.replace(
        "| a node | 20.0 | May |", "| a node | 19.0 | June |\n| a head | 18.0 | June |"
    )


def test_a_table_at_the_end_of_the_page_keeps_the_last_newline():
    page = OLD.removesuffix("\nAfter it.\n")
    assert merged(page, "losses", []) == page


@pytest.mark.parametrize(
    ("table", "row"), [("gains", ("a", "b", "c")), ("losses", ("a node", "19.0"))]
)
def test_what_does_not_fit_changes_nothing(table, row):
    with pytest.raises(ValueError, match=r"the page has no table|does not fit"):
        merged(OLD, table, [row])


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two rows are called 'a node'"):
        merged(OLD, "losses", [("a node", "19.0", "June"), ("a node", "18.0", "June")])


@pytest.mark.parametrize("table", ["losses", "chaos", "training", "beside KubeRay", "spot days"])
def test_the_page_has_the_tables_that_commands_write(table):
    page = PAGE.read_text()
    assert merged(page, table, []) == page
