"""Settings come from the environment; a wrong one is one clear sentence."""

import pytest

from trainingrun.controller.settings import Settings, SettingsError, from_environment


def test_without_variables_every_default_holds():
    assert from_environment({"PATH": "/bin"}) == Settings()


def test_variables_reach_the_class_that_their_field_is_in():
    settings = from_environment(
        {
            "TRAININGRUN_OPERATOR_NAMESPACES": "team-a, team-b",
            "TRAININGRUN_OPERATOR_WORKERS": "3",
            "TRAININGRUN_OPERATOR_PLATFORM": "gke",
            "TRAININGRUN_OPERATOR_LEASE_STALE_S": "20",
            "TRAININGRUN_OPERATOR_IMAGE": "",
        }
    )
    assert settings.operator.namespaces == ("team-a", "team-b")
    assert settings.operator.workers == 3
    assert settings.render.platform == "gke"
    assert settings.render.image == Settings().render.image
    assert settings.reconcile.lease_stale_s == 20.0


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("WORKERS", "many", "TRAININGRUN_OPERATOR_WORKERS is 'many'; it needs a whole number"),
        ("WORKERS", "0", "needs to be greater than 0"),
        ("POLL_S", "soon", "needs a number of seconds"),
        ("POLL_S", "inf", "needs to be greater than 0"),
        ("LOG_LEVEL", "LOUD", "use one of DEBUG, INFO"),
        ("RAY_AUTH", "on", "TRAININGRUN_OPERATOR_RAY_AUTH is 'on'; use token or disabled"),
        ("WORKRES", "3", "TRAININGRUN_OPERATOR_WORKRES is not a setting"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_needs(name, value, sentence):
    with pytest.raises(SettingsError, match=sentence):
        from_environment({f"TRAININGRUN_OPERATOR_{name}": value})
