"""What training code, KubeRay or a webhook says is fit for a status before it gets there."""

from trainingrun.reconciling.texts import short


def test_a_text_is_cut_and_on_one_line():
    assert short("one\n  two\tthree") == "one two three"
    assert short("x" * 2000, 10) == "xxxxxxx..."


def test_no_terminal_obeys_a_status():
    said = short(
        "\x1b[31mred\x1b]0;title\x07 \u202eevil\u2066 \x9b2J\u200b \u4f60\u597d \U0001f600"
    )
    assert said == "[31mred]0;title evil 2J \u4f60\u597d \U0001f600"
