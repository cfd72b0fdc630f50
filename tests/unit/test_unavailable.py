"""What cannot be had is no skipped test where it is wanted."""

import pytest

from support import binaries


@pytest.mark.parametrize(
    ("ci", "wanted", "outcome"),
    [
        ("true", False, pytest.fail.Exception),
        ("", True, pytest.fail.Exception),
        ("", False, pytest.skip.Exception),
    ],
)
def test_what_cannot_be_had_fails_in_ci_and_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, ci: str, wanted: bool, outcome: type[BaseException]
):
    monkeypatch.setenv("CI", ci)
    unavailable = binaries.skipping_unavailable(wanted=wanted)
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as raised, unavailable:
        raise binaries.Unavailable("no Go")
    assert (raised.type, str(raised.value)) == (outcome, "no Go")
