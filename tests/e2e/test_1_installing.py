"""Both documented ways to install the operator end with a ready operator and the CRD."""

from e2e import installing
from e2e.cluster import SYSTEM, TestCluster


def test_the_manifest_installs_as_it_is(cluster: TestCluster):
    installing.uninstall_chart(cluster)
    installing.uninstall_manifest(cluster)

    installing.install_by_manifest(cluster)
    assert cluster.kubectl.find("crd", "trainingruns.trainingrun.dev")

    installing.uninstall_manifest(cluster)
    assert cluster.kubectl.find("crd", "trainingruns.trainingrun.dev") is None


def test_the_chart_installs_over_itself_and_one_operator_runs(operated: TestCluster):
    installing.install_by_chart(operated)

    pods = operated.kubectl.within(SYSTEM).list("pods")
    (pod,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert pod["status"]["phase"] == "Running"
