"""Which names are those of secrets, for what is printed and for what is handed on alike."""

import pytest

from trainingrun.cli.masking import Masking as OfReports
from trainingrun_protocol.secret_text import is_secret_name
from trainingrun_runtime.masking import Masking as OfOutput

VALUE = "hunter2-and-more"
SECRETS = """
WANDB_API_KEY AWS_SECRET_ACCESS_KEY GITHUB_TOKEN DB_PASS DB_PASSWORD PGPASSWORD REDIS_PASSWD
SSH_PASSPHRASE SENTRY_DSN GITHUB_PAT SOME_SECRETS API_KEYS HF_TOKENS DB_CREDENTIALS
AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_SAS_TOKEN OPENAI_APIKEY
HFTOKEN MYSQL_PWD AUTHORIZATION HTTP_COOKIE SLACK_WEBHOOK SLACK_WEBHOOK_URL COMET_API_KEY2
accessToken PRIVATEKEY privateKey HTTPToken api-key db.pwd ES_BASIC_AUTH APP_JWT MONGO_CONN_STR
KEY TOKEN_OF_WANDB SIGNING_KEY_2
"""
OTHERS = """
HOME PATH PWD OLDPWD AWS_ACCESS_KEY_ID AWS_REGION TOKENIZERS_PARALLELISM tokenizer MONKEY
KEYBOARD_LAYOUT keypoints COMPASS BYPASS_CACHE AUTHOR WORLD_SIZE patience spatial_size
"""


@pytest.mark.parametrize(
    "name",
    SECRETS.split(),
)
def test_the_name_of_a_secret_is_known_to_both(name: str) -> None:
    assert is_secret_name(name)
    assert OfOutput({name: VALUE})(f"it is {VALUE}.".encode()) == b"it is ***."
    config = {"spec": {"training": {"config": {name: VALUE}}}}
    assert VALUE not in str(OfReports([config]).manifest(config))
    assert VALUE not in OfReports([config]).text(f"it is {VALUE}.")


@pytest.mark.parametrize(
    "name",
    OTHERS.split(),
)
def test_what_is_no_secret_is_shown_by_both(name: str) -> None:
    assert not is_secret_name(name)
    assert OfOutput({name: VALUE})(VALUE.encode()) == VALUE.encode()
    config = {"spec": {"training": {"config": {name: VALUE}}}}
    assert OfReports([config]).manifest(config) == config
