"""What a run needs to be allowed in its bucket: a policy of a real S3 server takes one away."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.binaries import skipping_unavailable
from support.cli_server import call
from support.policies import NEEDED, USER, Policies, running_with_policies


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policies]:
    folder = tmp_path_factory.mktemp("s3")
    with skipping_unavailable(), running_with_policies(folder) as found:
        yield found


@pytest.mark.parametrize(
    ("missing", "verdict", "said"),
    [
        (None, "ok", "can be written with this shell's credentials"),
        ("s3:GetObject", "wrong", "can be written but not read"),
        ("s3:PutObject", "wrong", "can be read but not written"),
        ("s3:DeleteObject", "wrong", "can be written but not deleted"),
        ("s3:ListBucket", "wrong", "objects cannot be listed"),
    ],
)
def test_doctor_says_what_is_not_allowed(
    policies: Policies,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: str | None,
    verdict: str,
    said: str,
) -> None:
    for name, value in {**USER, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    policies.allow([action for action in NEEDED if action != missing])
    folder = f"s3://runs/{tmp_path.name}"
    _, output, _ = call("doctor", "--storage", folder, "--endpoint", policies.url)
    (line,) = (line for line in output.splitlines() if "bucket: " in line)
    assert (line.split()[0], said in line) == (verdict, True), line
