"""Users of a versitygw whose permissions a bucket's policy decides."""

import contextlib
import hashlib
import hmac
import json
import subprocess
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from support import s3

USER = {"AWS_ACCESS_KEY_ID": "limited", "AWS_SECRET_ACCESS_KEY": "limited-secret"}
NEEDED = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket")


@dataclass
class Policies:
    """A server with the user `limited`."""

    url: str

    def allow(self, actions: Collection[str]) -> None:
        """Allow the user these actions in the bucket `runs`, and no others."""
        statements = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [USER["AWS_ACCESS_KEY_ID"]]},
                "Action": action,
                "Resource": f"arn:aws:s3:::runs{'' if action == 's3:ListBucket' else '/*'}",
            }
            for action in actions
        ]
        self._put(json.dumps({"Version": "2012-10-17", "Statement": statements}).encode())

    def _put(self, policy: bytes) -> None:
        """As the owner, in a request with Amazon's signature of version 4."""
        digest = hashlib.sha256(policy).hexdigest()
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        headers = {
            "host": self.url.removeprefix("http://"),
            "x-amz-content-sha256": digest,
            "x-amz-date": now,
        }
        signed = ";".join(headers)
        lines = [f"{name}:{value}" for name, value in headers.items()]
        request = "\n".join(["PUT", "/runs", "policy=", *lines, "", signed, digest])
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{s3.SECRET_KEY}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        by = f"Credential={s3.ACCESS_KEY}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
        urllib.request.urlopen(
            urllib.request.Request(
                f"{self.url}/runs?policy=",
                data=policy,
                method="PUT",
                headers={**headers, "Authorization": f"AWS4-HMAC-SHA256 {by}"},
            ),
            timeout=10,
        ).close()


@contextlib.contextmanager
def running_with_policies(folder: Path) -> Iterator[Policies]:
    """A server of its own.

    Raises:
        Unavailable: There is no server on this machine and none can be built.
    """
    (folder / "users").mkdir()
    with s3.running_s3(folder, users=folder / "users") as server:
        command = [s3.versitygw(), "admin", "--access", s3.ACCESS_KEY, "--secret", s3.SECRET_KEY]
        command += ["--endpoint-url", server.url, "create-user", "--role", "user"]
        access, secret = USER.values()
        command += ["--access", access, "--secret", secret]
        subprocess.run(command, check=True, capture_output=True)
        yield Policies(server.url)
