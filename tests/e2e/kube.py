"""kubectl, asked for JSON, and how these tests wait: for a condition, by a deadline."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")
Manifest = Mapping[str, Any]


class CommandError(AssertionError):
    """A command that has to work did not; the text has its stderr."""


class NotSeenError(AssertionError):
    """What was waited for did not come by its deadline; the text says what was there instead."""


def run(*command: str, stdin: str | None = None, timeout: float = 60, check: bool = True) -> str:
    """Run a command; its stdout.

    Raises:
        CommandError: it failed (unless `check` is false) or took longer than `timeout` seconds.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(command)}: not done after {timeout:.0f} s") from error
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise CommandError(f"{' '.join(command)}: exit code {done.returncode}: {said}")
    return done.stdout


def wait_for(
    what: str,
    probe: Callable[[], Found | None],
    timeout: float,
    instead: Callable[[], str] = lambda: "",
    every: float = 0.5,
) -> Found:
    """Poll until there is something true, and return it.

    Args:
        what: What is waited for, for the error.
        probe: Answers something falsy while it is not there.
        timeout: Seconds until it counts as missing.
        instead: Called once, at the deadline: what was there instead.
        every: Seconds between calls.

    Raises:
        NotSeenError: at the deadline.
    """
    deadline = time.monotonic() + timeout
    while True:
        if found := probe():
            return found
        if time.monotonic() > deadline:
            raise NotSeenError(f"{what}: not seen within {timeout:.0f} s. Instead: {instead()}")
        time.sleep(every)


class Kubectl:
    """kubectl with one kubeconfig and one default namespace."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def within(self, namespace: str) -> "Kubectl":
        """The same cluster, another namespace; "" for files that name their own."""
        return Kubectl(self.kubeconfig, namespace)

    def __call__(
        self, *words: str, stdin: str | None = None, timeout: float = 60, check: bool = True
    ) -> str:
        """Run `kubectl <words>`; its stdout."""
        # kubectl refuses a file whose objects name another namespace than the flag does.
        where = [f"--namespace={self.namespace}"] if self.namespace else []
        return run(
            "kubectl", f"--kubeconfig={self.kubeconfig}", *where, *words,
            stdin=stdin, timeout=timeout, check=check,
        )  # fmt: skip

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object; None if there is none."""
        text = self("get", kind, name, "--output=json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object that must be there."""
        return json.loads(self("get", kind, name, "--output=json"))

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of a kind, by label selector."""
        words = [f"--selector={selector}"] if selector else []
        return json.loads(self("get", kind, "--output=json", *words))["items"]

    def apply(self, *manifests: Manifest) -> None:
        """Server-side apply, as a user does it."""
        self.apply_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    def apply_text(self, text: str, *words: str) -> None:
        """Server-side apply of YAML or JSON."""
        self(
            "apply", "--server-side", "--force-conflicts", "--filename=-", *words,
            stdin=text, timeout=120,
        )  # fmt: skip

    def patch(self, kind: str, name: str, patch: Manifest) -> None:
        """A merge patch."""
        self("patch", kind, name, "--type=merge", f"--patch={json.dumps(patch)}")

    def delete(self, kind: str, name: str, *words: str, wait: bool = False) -> None:
        """Delete an object; one that is gone already is fine."""
        self("delete", kind, name, "--ignore-not-found", f"--wait={str(wait).lower()}", *words)

    def execute(self, pod: str, container: str, command: Sequence[str], check: bool = True) -> str:
        """Run a command in a container; its stdout."""
        return self("exec", pod, f"--container={container}", "--", *command, check=check)
