"""kubectl, asked for JSON, and how these tests wait: for a condition, by a deadline."""

import json
import subprocess
import threading
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


def run_at_once(when: Callable[[], object], *command: str, timeout: float = 60) -> None:
    """Run a command that prepares itself, prints a line, and acts when it reads one.

    To enter a container takes a core for a moment, in which all that a rank does takes many times
    as long, but for its wait between two steps: a rank that is killed then is often at the end of a
    step, where its loss costs more.

    Args:
        when: called once it is prepared; it acts when that has returned.

    Raises:
        CommandError: it failed, or took longer than `timeout` seconds.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as process:
        stuck = threading.Timer(timeout, process.kill)
        stuck.start()
        try:
            said = process.stdout.readline()
            if said:
                stuck.cancel()
                when()
            said += process.communicate("\n", timeout=timeout)[0]
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{' '.join(command)}: not done after {timeout:.0f} s") from error
        finally:
            stuck.cancel()
            process.kill()
    if process.returncode != 0:
        raise CommandError(f"{' '.join(command)}: exit code {process.returncode}: {said[-2000:]}")


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
        return run(*self._command(*words), stdin=stdin, timeout=timeout, check=check)

    def _command(self, *words: str) -> list[str]:
        # kubectl refuses a file whose objects name another namespace than the flag does.
        where = [f"--namespace={self.namespace}"] if self.namespace else []
        return ["kubectl", f"--kubeconfig={self.kubeconfig}", *where, *words]

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

    def execute_at_once(
        self, pod: str, container: str, command: Sequence[str], when: Callable[[], object]
    ) -> None:
        """Run a command in a container as `run_at_once` does."""
        words = self._command("exec", "--stdin", pod, f"--container={container}", "--", *command)
        run_at_once(when, *words)
