"""A folder as storage is one of each pod: refused unless all of them mount a volume there. A claim
is mounted by the operator, at a place that podTemplate leaves alone.
"""

from typing import Any

import pytest

from support.constraints import minimal_run
from trainingrun.api.parse import InvalidRunError, parse
from trainingrun.api.v1alpha1 import RunSpec

CLAIM = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
MOUNT = {"name": "runs", "mountPath": "/data"}
EMPTY = {"name": "cache", "emptyDir": {}}


def template(mounts: dict[str, Any], volume: Any = CLAIM) -> dict[str, Any]:
    containers = [{"name": name, "volumeMounts": [mount]} for name, mount in mounts.items()]
    return {"spec": {"volumes": [volume], "containers": containers}}


def both(mount: Any = MOUNT, volume: Any = CLAIM) -> dict[str, Any]:
    return template({"ray-head": mount, "ray-worker": mount}, volume)


def variable(name: str, value: str = "", field: str = "") -> dict[str, Any]:
    source = {"valueFrom": {"fieldRef": {"fieldPath": field}}}
    return {"name": name, **(source if field else {"value": value})}


def a_run(uri: str = "file:///data/runs", **spec: Any) -> dict[str, Any]:
    return minimal_run("team-a", storage={"uri": uri}, **spec)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="no volume"),
        pytest.param({"podTemplate": template({"ray-head": MOUNT})}, id="the head alone"),
        pytest.param({"podTemplate": template({"ray-worker": MOUNT})}, id="the workers alone"),
        pytest.param(
            {"podTemplate": both(volume={"name": "runs", "emptyDir": {}})}, id="each its own"
        ),
        pytest.param({"podTemplate": both({**MOUNT, "mountPath": "/dat"})}, id="elsewhere"),
        pytest.param({"podTemplate": both({**MOUNT, "readOnly": True})}, id="read only"),
        pytest.param(
            {
                "head": {"podTemplate": template({"ray-head": MOUNT})},
                "workers": {
                    "podTemplate": template(
                        {"ray-worker": MOUNT},
                        {"name": "runs", "persistentVolumeClaim": {"claimName": "other"}},
                    )
                },
            },
            id="two volumes of one name",
        ),
        pytest.param(
            {
                "podTemplate": template(
                    {"ray-head": {**MOUNT, "subPath": "a"}, "ray-worker": {**MOUNT, "subPath": "b"}}
                )
            },
            id="two folders of it",
        ),
        pytest.param(
            {"podTemplate": both({**MOUNT, "subPathExpr": "$(POD_NAME)"})}, id="by its name"
        ),
        pytest.param(
            {"podTemplate": both({**MOUNT, "subPathExpr": "$(RAY_CLOUD_INSTANCE_ID)"})},
            id="by its name in KubeRay's variable",
        ),
        pytest.param(
            {
                "podTemplate": both({**MOUNT, "subPathExpr": "a/$(FOLDER)"}),
                "training": {
                    "function": "a:b",
                    "env": [variable("IP", field="status.podIP"), variable("FOLDER", "on-$(IP)")],
                },
            },
            id="by its address",
        ),
        pytest.param(
            {
                "podTemplate": template(
                    {
                        "ray-head": {**MOUNT, "subPathExpr": "$(TRAININGRUN_NAME)"},
                        "ray-worker": {**MOUNT, "subPathExpr": "$(TRAININGRUN_UID)"},
                    }
                )
            },
            id="two folders of it by variables",
        ),
    ],
)
def test_a_folder_that_pods_do_not_share_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidRunError) as refused:
        parse(a_run(**spec))
    assert str(refused.value).startswith(
        'spec.storage.uri is "file:///data/runs": is a folder of each pod by itself'
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"podTemplate": both()}, id="for all"),
        pytest.param({"podTemplate": both({**MOUNT, "mountPath": "/data/runs/"})}, id="the folder"),
        pytest.param(
            {
                "head": {"podTemplate": template({"ray-head": MOUNT})},
                "workers": {"podTemplate": template({"ray-worker": MOUNT})},
            },
            id="for each",
        ),
        pytest.param(
            {"podTemplate": both(volume={"name": "runs", "nfs": {"server": "a", "path": "/b"}})},
            id="NFS",
        ),
        pytest.param(
            {
                "podTemplate": both({**MOUNT, "subPathExpr": "$(SPACE)/$(FOLDER)/$$(POD_NAME)"}),
                "training": {
                    "function": "a:b",
                    "env": [variable("SPACE", field="metadata.namespace"), variable("FOLDER", "x")],
                },
            },
            id="a folder by variables that all have alike",
        ),
    ],
)
def test_a_volume_that_all_pods_mount_there_is_taken(spec: dict[str, Any]) -> None:
    parse(a_run(**spec))


def test_a_bucket_needs_no_volume() -> None:
    assert isinstance(parse(a_run("s3://runs")).spec, RunSpec)


@pytest.mark.parametrize(
    "place",
    ["/mnt/claims/runs", "/mnt/claims/runs/", "/mnt/claims/runs/team-a", "/mnt//claims/runs"],
)
@pytest.mark.parametrize("container", ["ray-head", "ray-worker"])
def test_nothing_else_is_mounted_at_the_place_of_a_claim(place: str, container: str) -> None:
    """The pods would have two folders, and one of them be lost with its pod."""
    other = template({container: {"name": "cache", "mountPath": place}}, EMPTY)
    with pytest.raises(InvalidRunError) as refused:
        parse(a_run("pvc://runs/team-a", podTemplate=other))
    assert str(refused.value).startswith(
        'spec.storage.uri is "pvc://runs/team-a": is mounted below /mnt/claims, and podTemplate '
        "mounts another volume at its place or in it"
    )


@pytest.mark.parametrize("place", ["/data", "/mnt/claims/runs-2", "/mnt/claims/other", "/mnt"])
def test_other_mounts_are_taken_beside_a_claim(place: str) -> None:
    parse(
        a_run(
            "pvc://runs/team-a", podTemplate=template({"ray-head": {**MOUNT, "mountPath": place}})
        )
    )
    same = {"name": "trainingrun-claim", "mountPath": "/data"}
    sidecar = {"name": "backup", "image": "backup", "volumeMounts": [same]}
    parse(a_run("pvc://runs", podTemplate={"spec": {"containers": [sidecar]}}))
