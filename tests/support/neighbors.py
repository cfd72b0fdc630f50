"""KubeRay's operator and Kueue's controller as they are, beside an API server without kubelets."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.apiserver import ApiServer
from support.binaries import kuberay_crds, kuberay_operator, kueue_controller, kueue_crds
from support.ports import free_port
from support.tls import certificates


@contextlib.contextmanager
def running_kuberay(apiserver: ApiServer, folder: Path) -> Iterator[Path]:
    """KubeRay's operator; the file of what it writes.

    Raises:
        support.binaries.Unavailable: it cannot be had.
    """
    for file in sorted(kuberay_crds()[0].parent.glob("ray.io_*.yaml")):
        apiserver.install_crd(file.read_text())
    command = [
        str(kuberay_operator()),
        f"--kubeconfig={apiserver.kubeconfig}",
        "--enable-leader-election=false",
        "--metrics-addr=0",
        "--health-probe-bind-address=0",
    ]
    with _running(command, folder) as log:
        yield log


@contextlib.contextmanager
def running_kueue(apiserver: ApiServer, folder: Path) -> Iterator[Path]:
    """Kueue's controller, whose webhooks nobody calls; the file of what it writes.

    Raises:
        support.binaries.Unavailable: it cannot be had.
    """
    for file in kueue_crds():
        apiserver.install_crd(file.read_text())
    made = certificates(folder)
    served = folder / "metrics-certificates"  # see build_kueue.sh; its webhooks' have these names
    served.mkdir()
    shutil.copy(made.certificate, served / "tls.crt")
    shutil.copy(made.key, served / "tls.key")
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": free_port(), "certDir": str(served)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["ray.io/rayjob", "ray.io/raycluster"]},
        "featureGates": {"VisibilityOnDemand": False},  # it would need an API of its own
    }
    configuration = folder / "kueue.json"
    configuration.write_text(json.dumps(settings))
    command = [
        str(kueue_controller()),
        f"--config={configuration}",
        f"--kubeconfig={apiserver.kubeconfig}",
    ]
    with _running(command, folder) as log:
        yield log


@contextlib.contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator[Path]:
    """One that ends by itself fails the test."""
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, cwd=folder) as runs,
    ):
        try:
            yield log
            ended = runs.poll()
        finally:
            runs.terminate()
    assert ended is None, log.read_text()[-3000:]
