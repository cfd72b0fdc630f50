"""The table: for every constraint of the spec a value that is accepted and one that is refused."""

from dataclasses import replace
from typing import Any

from support.constraints import MISSING, Row
from support.failure_constraint_rows import FAILURE_ROWS
from support.notify_constraint_rows import NOTIFY_ROWS
from support.row_makers import by_rule, in_range, max_length, max_quantity_length, one_of, required
from support.sweep_constraint_rows import SWEEP_ROWS, SWEPT_RUN

OBJECT_NAME = "lower-case letters, digits, hyphens and dots"
FUNCTION = "must be module:function, such as"
FOLDER = "must be a folder in a bucket, such as s3://bucket/folder"
ENDPOINT = "must be the http or https URL of an S3-compatible service"
CORES = "must be a quantity of cores of at least 1m, such as 500m or 4"
BYTES = "must be a quantity of bytes of at least 64Mi with its unit, such as 16Gi"
SHARED = "must be a quantity of bytes of at least 1Mi, such as 8Gi"
RUN_NAME = "must have at most 41 characters, begin with a lower-case letter"
ONE_SOURCE = "set exactly one of training.function (module:function), training.script (a Ray Train"
ENV_NAME = "must be letters, digits and underscores"
LABEL_VALUE = "must be the value of a node label, such as NVIDIA-A100-SXM4-80GB"
IMAGE = "must be the reference of an image, such as ghcr.io/acme/train:1.0"
NCCL = "nccl needs workers.accelerator of kind nvidia or amd; use auto, or gloo"

RESTORED_RUN = "must be the name of a TrainingRun: lower-case letters, digits and hyphens"
RESTORED_FOLDER = "must be a run's own folder, such as s3://bucket/folder/digits-1a2b3c4d"

CODE = {"uri": "s3://runs/code/train.zip"}
_STORAGE = {"uri": "s3://runs/team-a"}
_CLAIM = {"uri": "pvc://runs/team-a"}
_NCCL = {"function": "a:b", "torch": {"backend": "nccl"}}
_GPU = {"accelerator": {"kind": "nvidia"}}
_TPU = {"accelerator": {"kind": "tpu"}}
_SPEC = {"training": {"function": "a:b"}, "storage": _STORAGE}
_ELASTIC = {"count": 2, "minimum": 1}
_ON_DEMAND = {"rules": [{"when": {"classes": ["Preempted"]}, "then": "RestartOnDemand"}]}
_PACKED_SPOT = {"placement": "StrictPack", "capacity": {"type": "Spot"}}


def _code(uri: str) -> dict[str, Any]:
    return {"function": "a:b", "code": {"uri": uri}}


def _env(path: str, keyword: str, good: Any, bad: Any, says: str) -> Row:
    return Row(path, keyword, good, bad, says, "spec.training.env")


def _budget(field: str, keyword: str, good: Any, bad: Any, says: str) -> Row:
    of_good, of_bad = ({"amount": 1, field: value} for value in (good, bad))
    if bad is MISSING:
        of_bad = {"action": "Warn"}
    return Row(f"spec.budget.{field}", keyword, of_good, of_bad, says, "spec.budget")


def _fallback(field: str, least: int, most: int) -> list[Row]:
    def spot(value: int) -> dict[str, Any]:
        return {"type": "Spot", "fallback": {field: value}}

    path, at = f"spec.workers.capacity.fallback.{field}", "spec.workers.capacity"
    lower = f"should be greater than or equal to {least}"
    upper = f"should be less than or equal to {most}"
    return [
        Row(path, "minimum", spot(least), spot(least - 1), lower, at),
        Row(path, "maximum", spot(most), spot(most + 1), upper, at),
    ]


def _kept_best(keyword: str, good: int, bad: int, says: str) -> Row:
    of_good, of_bad = ({"keepBest": count, "best": {"metric": "loss"}} for count in (good, bad))
    return Row("spec.checkpoints.keepBest", keyword, of_good, of_bad, says, "spec.checkpoints")


def _variable(name: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, **(more or {"value": "1"})}]


def _of_pod_template(path: str) -> list[Row]:
    """Of a field that holds a podTemplate."""
    spec = f"{path}.spec"

    def hook(container: str, **kind: Any) -> list[dict[str, Any]]:
        return [{"name": container, "image": "a", "lifecycle": {"preStop": kind}}]

    def variables(container: str, *names: str) -> list[dict[str, Any]]:
        env = [{"name": name, "value": "1"} for name in names]
        return [{"name": container, "image": "a", "env": env}]

    def many(number: int, **more: str) -> list[dict[str, Any]]:
        return [{"name": f"a-{index}", **more} for index in range(number)]

    longest = "a" * 253
    hundreds = [f"A{index}" for index in range(201)]
    return [
        *by_rule(f"{spec}.restartPolicy", "must be Never, or left out", ["Never"], ["Always", ""]),
        *by_rule(
            f"{spec}.terminationGracePeriodSeconds",
            "must be 10 to 86400: Ray takes up to 5 s to end, and the checkpoint of a preemption",
            [10, 86400],
            [9, 86401],
        ),
        *by_rule(
            f"{spec}.activeDeadlineSeconds",
            "must not be set: a pod that it ends is replaced again and again; set",
            [{}],
            [{"activeDeadlineSeconds": 60}],
            spec,
        ),
        *by_rule(
            f"{spec}.nodeName",
            "must not be set: it passes by the scheduler, and pods for a node that does not exist",
            [{"nodeSelector": {"kubernetes.io/hostname": "n"}}],
            [{"nodeName": "n"}],
            spec,
        ),
        *by_rule(
            f"{spec}.volumes[].name",
            "must not be script, shared-memory, tokens or trainingrun-claim, the operator's own",
            ["scripts", "data", "shm", "claim"],
            ["script", "tokens", "shared-memory", "trainingrun-claim"],
        ),
        *by_rule(
            f"{spec}.containers[].env",
            "no variable of Ray's container may be one that the operator or KubeRay sets",
            [variables("proxy", "POD_NAME"), variables("ray-head", "NCCL_DEBUG")],
            [variables("ray-head", "A", "POD_NAME"), variables("ray-worker", "TRAININGRUN_NAME")],
            f"{spec}.containers",
        ),
        *by_rule(
            f"{spec}.containers[].lifecycle.preStop",
            "must be exec or sleep in Ray's container, where it begins once the checkpoint of a",
            [hook("ray-worker", sleep={"seconds": 1}), hook("proxy", httpGet={"port": 80})],
            [hook("ray-worker", httpGet={"port": 80}), hook("ray-head", tcpSocket={"port": 80})],
            f"{spec}.containers",
        ),
        *(
            Row(f"{spec}.{path}", keyword, good, bad, says, f"{spec}.{path.split('[')[0]}")
            for keyword, says, rows in (
                (
                    "required",
                    "Required value",
                    {
                        "volumes[].name": (many(1), [{"emptyDir": {}}]),
                        "containers[].name": (many(1, image="a"), [{"image": "a"}]),
                        "containers[].env[].name": (
                            variables("a", "A"),
                            [{**many(1, image="a")[0], "env": [{"value": "1"}]}],
                        ),
                    },
                ),
                (
                    "unique",
                    "Duplicate value: {",
                    {
                        "volumes": (many(2), many(1) * 2),
                        "containers": (many(2, image="a"), many(1, image="a") * 2),
                        "containers[].env": (variables("a", "A"), variables("a", "A", "A")),
                    },
                ),
            )
            for path, (good, bad) in rows.items()
        ),
        Row(f"{spec}.volumes", "maxItems", many(200), many(201), "must have at most 200 items"),
        Row(
            f"{spec}.containers",
            "maxItems",
            many(50, image="a"),
            many(51, image="a"),
            "must have at most 50 items",
        ),
        Row(
            f"{spec}.containers[].env",
            "maxItems",
            variables("a", *hundreds[:200]),
            variables("a", *hundreds),
            "must have at most 200 items",
            f"{spec}.containers",
        ),
        Row(
            f"{spec}.containers[].env[].name",
            "maxLength",
            variables("a", longest),
            variables("a", longest + "a"),
            "may not be more than 253 bytes",
            f"{spec}.containers",
        ),
    ]


_CODE = {"configMap": "code"}


def _started(path: str) -> str:
    """Of a script that torchrun starts elsewhere."""
    return path.replace("spec.training.script", "spec.training.torchrun.script")


ROWS: list[Row] = [
    *by_rule(
        "metadata.name",
        RUN_NAME,
        ["a", "a" * 41, "run-2"],
        ["1a", "a" * 42, "a.b"],
    ),
    required("spec", {"training": {"function": "a:b"}, "storage": _STORAGE}),
    required("spec.training", {"function": "a:b"}),
    *by_rule(
        "spec.image",
        IMAGE,
        ["train", "localhost:5000/train:1.0", f"ghcr.io/acme/train@sha256:{'0' * 64}"],
        ["", "two words", "train@latest"],
    ),
    max_length("spec.image", 1024),
    *by_rule(
        "spec.training",
        ONE_SOURCE,
        [{"function": "a:b"}, {"script": _CODE}, {"torchrun": {"script": _CODE}}],
        [
            {},
            {"function": "a:b", "script": _CODE},
            {"script": _CODE, "torchrun": {"script": _CODE}},
            {"function": "a:b", "script": _CODE, "torchrun": {"script": _CODE}},
        ],
    ),
    *by_rule(
        "spec.training.script",
        "set exactly one of configMap (a file in a ConfigMap) and path",
        [{"configMap": "code"}, {"path": "/app/train.py"}],
        [{}, {"configMap": "code", "path": "/app/train.py"}],
    ),
    *by_rule(
        "spec.training.script.path",
        "must be the path of a file, absolute in the image, such as /app/train.py, or relative to",
        [{"path": "/train.py"}, {"path": "/opt/my-app/..main"}],
        [
            *({"path": path} for path in ("", "/app/", "/two words.py", "a//b")),
            *({"path": path} for path in ("..", "/app/../a.py", "/.", "/a/...")),
        ],
        "spec.training.script",
    ),
    *by_rule(
        "spec.training.script.path",
        "is relative to training.code, which is not set; set it, or write the absolute path",
        [{"script": {"path": "src/train.py"}, "code": CODE}, {"script": {"path": "/train.py"}}],
        [{"script": {"path": "src/train.py"}}],
        "spec.training",
    ),
    required("spec.training.code.uri", CODE["uri"]),
    *by_rule(
        "spec.training.code.uri",
        "must be a .zip file in a bucket, such as s3://bucket/folder/code.zip",
        [
            *(CODE["uri"], "gs://runs/a/b.zip", "abfss://runs/a.zip", "file:///data/a.zip"),
            "abfss://a@b.dfs.core.windows.net/c.zip",
        ],
        [
            "s3://runs/code.tar.gz",
            "s3://runs",
            "runs/code.zip",
            "https://example.com/code.zip",
            "s3://key:secret@runs/code.zip",
            "s3://runs/code.zip?token=1",
            "s3://runs/my code.zip",
            *("pvc://runs.zip", "pvc://runs/../a.zip"),
            "",
        ],
    ),
    Row(
        "spec.training.code.uri",
        "maxLength",
        "s3://runs/" + "a" * 1010 + ".zip",
        "s3://runs/" + "a" * 1011 + ".zip",
        "may not be more than 1024 bytes",
    ),
    *by_rule(
        "spec.training.requirements",
        "every item must be one requirement, such as einops==0.8.0; pip's options are variables",
        [["einops==0.8.0", "a[b]>=1,<2 ; python_version > '3.10'"], ["a @ git+ssh://git@b/c"]],
        [["--index-url https://a"], ["a", "-r b.txt"], ["# a"], [""], ["a\nb"], [" a"]],
    ),
    *by_rule(
        "spec.training.requirements",
        "no item may hold credentials; put them into a Secret",
        [["a @ https://b/c.whl"]],
        [["a @ https://user:secret@b/c.whl"], ["a", "b @ git+https://token@c/d.git"]],
    ),
    Row(
        "spec.training.requirements",
        "maxItems",
        ["a"] * 200,
        ["a"] * 201,
        "must have at most 200 items",
    ),
    Row(
        "spec.training.requirements[]",
        "maxLength",
        ["a" * 2048],
        ["a" * 2049],
        "may not be more than 2048 bytes",
        "spec.training.requirements",
    ),
    Row(
        "spec.training.script.path",
        "maxLength",
        {"path": "/" + "a" * 1023},
        {"path": "/" + "a" * 1024},
        "may not be more than 1024 bytes",
        "spec.training.script",
    ),
    Row(
        "spec.training.script.args",
        "maxItems",
        {"path": "/a", "args": ["--a"] * 100},
        {"path": "/a", "args": ["--a"] * 101},
        "must have at most 100 items",
        "spec.training.script",
    ),
    *by_rule(
        "spec.training.script.args",
        "must have at most 32768 characters in all; put larger things into a file",
        [{"path": "/a", "args": ["a" * 4096] * 8}, {"path": "/a", "args": ["é" * 4096] * 8}],
        [{"path": "/a", "args": [*["a" * 4096] * 8, "a"]}],
        "spec.training.script",
    ),
    *by_rule(
        "spec.training.requirements",
        "must have at most 32768 characters in all; put the packages into the image",
        [["a" * 2048] * 16],
        [[*["a" * 2048] * 16, "a"]],
    ),
    Row(
        "spec.training.script.args[]",
        "maxLength",
        {"path": "/a", "args": ["a" * 4096]},
        {"path": "/a", "args": ["a" * 4097]},
        "may not be more than 4096 bytes",
        "spec.training.script",
    ),
    *by_rule(
        "spec.training.function",
        FUNCTION,
        ["train:main", "a.b.c:d_1", "_a:_b"],
        ["train", "train.main", "a/b:c", "a..b:c", "a b:c", ":c", "a:", "a:b.c", "1a:b", ""],
    ),
    *by_rule(
        "spec.training.function",
        "names a file; name its module, without .py",
        ["train.pyx:main", "py:main"],
        ["train.py:main", "a.train.py:main"],
    ),
    max_length("spec.training.function", 253, "a:"),
    *by_rule(
        "spec.training.script.configMap",
        OBJECT_NAME,
        ["code.v1", "a-b.c-d"],
        ["Code", "", "-a", "a/b", "a..b", "a-.b", "a."],
    ),
    max_length("spec.training.script.configMap", 253),
    *by_rule(
        "spec.training.script.file",
        "must be a key of the ConfigMap, such as train.py",
        ["main.py", "a-b_c", ".a", "a..b"],
        ["../main.py", "a/b.py", "", "a b", "..", ".", "..a"],
    ),
    max_length("spec.training.script.file", 253),
    *one_of("spec.training.torch.backend", "mpi", "auto", "gloo", "nccl")[:2],
    *by_rule(
        "spec.training.torch.backend",
        NCCL,
        [{"training": _NCCL, "storage": _STORAGE, "workers": _GPU}],
        [
            {"training": _NCCL, "storage": _STORAGE},
            {"training": _NCCL, "storage": _STORAGE, "workers": _TPU},
        ],
        "spec",
    ),
    *in_range("spec.training.torch.timeoutSeconds", 1, 86400),
    _env(
        "spec.training.env",
        "maxItems",
        [{"name": f"A{number}", "value": "1"} for number in range(100)],
        [{"name": f"A{number}", "value": "1"} for number in range(101)],
        "must have at most 100 items",
    ),
    _env(
        "spec.training.env",
        "rule",
        [{"name": f"A{number}", "value": "é" * 16384} for number in range(16)],
        [{"name": f"A{number}", "value": "a" * 15500} for number in range(17)],
        "must have at most 262144 characters in all values; put larger things into a ConfigMap",
    ),
    _env(
        "spec.training.env",
        "unique",
        _variable("A") + _variable("B"),
        _variable("A") + _variable("A", value="2"),
        'Duplicate value: {"name":"A"}',
    ),
    _env("spec.training.env[]", "rule", _variable("A"), [{"name": "A"}], "set exactly one of"),
    _env(
        "spec.training.env[]",
        "rule",
        _variable("A", valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}),
        _variable("A", value="1", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "set exactly one of value and valueFrom",
    ),
    _env(
        "spec.training.env[].name", "required", _variable("A"), [{"value": "1"}], "Required value"
    ),
    _env("spec.training.env[].name", "rule", _variable("_a1"), _variable("1A"), ENV_NAME),
    _env("spec.training.env[].name", "rule", _variable("NCCL_DEBUG"), _variable("A-B"), ENV_NAME),
    *[
        _env(
            "spec.training.env[].name",
            "rule",
            _variable(good),
            _variable(bad),
            "is set by the operator or by KubeRay in every pod; choose another name",
        )
        for good, bad in (
            ("MY_TRAININGRUN_X", "TRAININGRUN_TOKEN"),
            ("MY_POD_NAME", "POD_NAME"),
            ("NODE", "NODE_NAME"),
            ("RAY_DATA_X", "RAY_ADDRESS"),
            ("RAY_TRAIN_X", "KUBERAY_GEN_RAY_START_CMD"),
        )
    ],
    max_length("spec.training.env[].name", 253),
    max_length("spec.training.env[].value", 16384),
    *in_range("spec.workers.count", 1, 1000),
    *by_rule(
        "spec.workers.count",
        "must be 1 with accelerator.kind tpu, since Ray places several workers with TPUs by the",
        [{"count": 1, **_TPU}, {"count": 2, **_GPU}],
        [{"count": 2, **_TPU}, {"count": 8, "perPod": 8, **_TPU}],
        "spec.workers",
    ),
    Row("spec.workers.perPod", "minimum", 1, 0, "should be greater than or equal to 1"),
    Row(
        "spec.workers.perPod",
        "maximum",
        {"count": 64, "perPod": 64},
        {"count": 65, "perPod": 65},
        "should be less than or equal to 64",
        "spec.workers",
    ),
    *by_rule(
        "spec.workers.perPod",
        "must divide workers.count, since every pod holds the same number of workers; write a",
        [{"count": 8, "perPod": 8}, {"count": 16, "perPod": 8}, {"count": 3}],
        [{"count": 8, "perPod": 3}, {"count": 4, "perPod": 8}, {"perPod": 2}],
        "spec.workers",
    ),
    Row(
        "spec.workers.minimum",
        "minimum",
        _ELASTIC,
        {"count": 2, "minimum": 0},
        "should be greater than or equal to 1",
        "spec.workers",
    ),
    Row(
        "spec.workers.minimum",
        "maximum",
        {"count": 1000, "minimum": 999},
        {"count": 1000, "minimum": 1000},
        "should be less than or equal to 999",
        "spec.workers",
    ),
    *by_rule(
        "spec.workers.minimum",
        "must be less than workers.count, the number of workers at full size; lower it, or leave",
        [_ELASTIC, {"count": 8, "minimum": 7}],
        [{"count": 2, "minimum": 2}, {"count": 2, "minimum": 3}, {"minimum": 1}],
        "spec.workers",
    ),
    *by_rule(
        "spec.workers.minimum",
        "must be a multiple of workers.perPod, since pods are lost and replaced as a whole; write",
        [{"count": 16, "perPod": 8, "minimum": 8}, {"count": 4, "minimum": 3}],
        [{"count": 16, "perPod": 8, "minimum": 4}, {"count": 4, "perPod": 2, "minimum": 3}],
        "spec.workers",
    ),
    *by_rule(
        "spec.failures.rules",
        "RestartOnDemand cannot be set together with workers.placement StrictPack",
        [
            _SPEC | {"failures": _ON_DEMAND, "workers": {"capacity": {"type": "Spot"}}},
            _SPEC | {"failures": _ON_DEMAND, "workers": {"placement": "StrictPack"}},
            _SPEC | {"workers": _PACKED_SPOT},
        ],
        [_SPEC | {"failures": _ON_DEMAND, "workers": _PACKED_SPOT}],
        "spec",
    ),
    *by_rule(
        "spec.workers.minimum",
        "cannot be set together with spec.sweep, whose trials keep their number of workers; leave",
        [_SPEC | {"workers": _ELASTIC}, SWEPT_RUN | {"workers": {"count": 2}}],
        [SWEPT_RUN | {"workers": _ELASTIC}],
        "spec",
    ),
    Row(
        "spec.workers.resizeSeconds",
        "minimum",
        _ELASTIC | {"resizeSeconds": 10},
        _ELASTIC | {"resizeSeconds": 9},
        "should be greater than or equal to 10",
        "spec.workers",
    ),
    Row(
        "spec.workers.resizeSeconds",
        "maximum",
        _ELASTIC | {"resizeSeconds": 86400},
        _ELASTIC | {"resizeSeconds": 86401},
        "should be less than or equal to 86400",
        "spec.workers",
    ),
    *by_rule(
        "spec.workers.resizeSeconds",
        "needs workers.minimum, without which the number of workers stays; set it, or leave",
        [_ELASTIC | {"resizeSeconds": 60}, {"count": 2}],
        [{"count": 2, "resizeSeconds": 60}],
        "spec.workers",
    ),
    Row("spec.workers.standby", "minimum", 0, -1, "should be greater than or equal to 0"),
    Row("spec.workers.standby", "maximum", 16, 17, "should be less than or equal to 16"),
    *by_rule(
        "spec.workers.standby",
        "must be 0 with accelerator.kind tpu, whose worker is moved to no other pod; leave it",
        [{"standby": 1, **_GPU}, {"standby": 0, **_TPU}, {"standby": 1}],
        [{"standby": 1, **_TPU}],
        "spec.workers",
    ),
    *by_rule(
        "spec.workers.standby",
        "cannot be set together with spec.sweep, whose trials share the pods; leave one of them",
        [_SPEC | {"workers": {"standby": 1}}, SWEPT_RUN | {"workers": {"standby": 0}}],
        [SWEPT_RUN | {"workers": {"standby": 1}}],
        "spec",
    ),
    *[
        Row(
            "spec.workers.globalBatch",
            "enum",
            _ELASTIC | {"globalBatch": option},
            _ELASTIC | {"globalBatch": "Keep"},
            'supported values: "keep", "scale"',
            "spec.workers",
        )
        for option in ("keep", "scale")
    ],
    *by_rule(
        "spec.workers.globalBatch",
        "needs workers.minimum, without which the number of workers stays, and the batch with it;",
        [_ELASTIC | {"globalBatch": "keep"}, _ELASTIC | {"globalBatch": "scale"}, {"count": 2}],
        [{"count": 2, "globalBatch": "keep"}, {"count": 2, "globalBatch": "scale"}],
        "spec.workers",
    ),
    *in_range("spec.workers.resources.dataCpus", 1, 1000),
    *[
        row
        for group in ("workers", "head")
        for row in (
            *by_rule(
                f"spec.{group}.resources.cpu",
                CORES,
                ["4", 4, "500m", "0.5", "1m", "1k"],
                ["0", 0, "-1", -1, "four", "1.", "4 cores", "1e3", ""],
            ),
            *by_rule(
                f"spec.{group}.resources.memory",
                BYTES,
                ["64Mi", "16Gi", "16G", "1.5Gi", 2**30],
                ["63Mi", "16", 16, "16GB", "16gb", "16 Gi", "-1Gi", ""],
            ),
            max_quantity_length(f"spec.{group}.resources.cpu", "4"),
            max_quantity_length(f"spec.{group}.resources.memory", "1Gi"),
        )
    ],
    *by_rule("spec.workers.resources.sharedMemory", SHARED, ["1Mi", "2Gi"], ["0", "1", "big"]),
    *by_rule(
        "spec.workers.resources.sharedMemory",
        "must not be more than memory",
        [{"memory": "4Gi", "sharedMemory": "4Gi"}, {"sharedMemory": "2Gi"}],
        [{"memory": "4Gi", "sharedMemory": "4097Mi"}, {"sharedMemory": "3Gi"}],
        "spec.workers.resources",
    ),
    max_quantity_length("spec.workers.resources.sharedMemory", "1Gi"),
    required("spec.workers.accelerator.kind", "nvidia"),
    *one_of("spec.workers.accelerator.kind", "NVIDIA", "nvidia", "amd", "tpu", "gaudi", "neuron"),
    *by_rule(
        "spec.workers.accelerator.product",
        LABEL_VALUE,
        ["NVIDIA-A100-SXM4-80GB", "v5e_1.2"],
        ["A100 80GB", "-a", ""],
    ),
    max_length("spec.workers.accelerator.product", 63),
    Row(
        "spec.workers.accelerator.products",
        "minItems",
        {"kind": "nvidia", "products": ["h100"]},
        {"kind": "nvidia", "products": []},
        "should have at least 1 items",
        "spec.workers.accelerator",
    ),
    Row(
        "spec.workers.accelerator.products",
        "maxItems",
        {"kind": "nvidia", "products": [f"p{n}" for n in range(8)]},
        {"kind": "nvidia", "products": [f"p{n}" for n in range(9)]},
        "must have at most 8 items",
        "spec.workers.accelerator",
    ),
    Row(
        "spec.workers.accelerator.products[]",
        "maxLength",
        {"kind": "nvidia", "products": ["h" * 63]},
        {"kind": "nvidia", "products": ["h" * 64]},
        "may not be more than 63 bytes",
        "spec.workers.accelerator",
    ),
    *by_rule(
        "spec.workers.accelerator.products",
        f"each {LABEL_VALUE}",
        [{"kind": "nvidia", "products": ["h100", "NVIDIA-A100-SXM4-80GB"]}],
        [{"kind": "nvidia", "products": ["h100", "A100 80GB"]}],
        "spec.workers.accelerator",
    ),
    *by_rule(
        "spec.workers.accelerator.products",
        "cannot be set together with product",
        [{"kind": "nvidia", "products": ["h100"]}],
        [{"kind": "nvidia", "product": "a100", "products": ["h100"]}],
        "spec.workers.accelerator",
    ),
    *by_rule(
        "spec.workers.accelerator.products",
        "must name each product once",
        [{"kind": "nvidia", "products": ["h100", "a100"]}],
        [{"kind": "nvidia", "products": ["h100", "h100"]}],
        "spec.workers.accelerator",
    ),
    *in_range("spec.workers.accelerator.count", 1, 64),
    *by_rule(
        "spec.workers.accelerator.count",
        "must be 1, 2, 4 or 8 for kind tpu",
        [
            *({"kind": "tpu", "count": count} for count in (1, 2, 4, 8)),
            {"kind": "nvidia", "count": 3},
        ],
        [{"kind": "tpu", "count": 3}, {"kind": "tpu", "count": 16}],
        "spec.workers.accelerator",
    ),
    *one_of("spec.workers.placement", "PACK", "Pack", "Spread", "StrictPack", "StrictSpread"),
    *one_of("spec.workers.capacity.type", "spot", "OnDemand", "Spot", "PreferSpot"),
    *_fallback("afterPreemptions", 1, 50),
    *_fallback("withinSeconds", 60, 604800),
    *_fallback("afterPendingSeconds", 10, 86400),
    *_fallback("returnAfterSeconds", 60, 31536000),
    *by_rule(
        "spec.workers.capacity.fallback",
        "needs capacity.type Spot or PreferSpot",
        [{"type": "Spot", "fallback": {}}, {"type": "PreferSpot", "fallback": {}}],
        [{"type": "OnDemand", "fallback": {}}, {"fallback": {}}],
        "spec.workers.capacity",
    ),
    *by_rule(
        "spec.storage.uri",
        FOLDER,
        [
            *("s3://runs", "gs://runs/", "abfss://runs/team-a"),
            *("abfss://a@b.dfs.core.windows.net/c", "abfs://a-1@b.blob.core.windows.net"),
            *("pvc://runs", "pvc://runs/", "pvc://runs.team-a/digits_1/v1.0/"),
        ],
        [
            "runs/team-a",
            "s3:/runs",
            "s3://",
            "s3:///team-a",
            "http://runs/team-a",
            "s3://key:secret@runs/team-a",
            "abfss://key:secret@b.dfs.core.windows.net/c",
            "abfss://secret@example.com/c",
            "s3://a@b.dfs.core.windows.net/c",
            "s3://runs/team-a?token=1",
            "s3://runs/team a",
            "file://host/runs",
            *("pvc://", "pvc:///a", "pvc://Runs/a", "pvc://runs/../a", "pvc://runs/%2e%2e/a"),
            *("pvc://runs//a", "pvc://user@runs/a", "pvc://runs/.a"),
            "",
        ],
    ),
    *by_rule(
        "spec.storage.uri",
        "is a claim, which has no endpoint, region and credentialsSecret; leave them out",
        [_CLAIM, {**_CLAIM, "restoreFrom": {"run": "a"}}],
        [
            {**_CLAIM, "endpoint": "http://minio:9000"},
            {**_CLAIM, "region": "eu-west-1"},
            {**_CLAIM, "credentialsSecret": "s3-credentials"},
        ],
        "spec.storage",
    ),
    max_length("spec.storage.uri", 1024, "s3://"),
    *by_rule(
        "spec.storage.endpoint",
        ENDPOINT,
        ["http://minio:9000", "https://s3.example.com/path"],
        ["minio:9000", "s3://minio", "http://key:secret@minio:9000", "http://minio?a=b", ""],
    ),
    max_length("spec.storage.endpoint", 1024, "http://"),
    *by_rule("spec.storage.region", "such as eu-west-1", ["eu-west-1"], ["eu west", ""]),
    max_length("spec.storage.region", 63),
    *by_rule(
        "spec.storage.credentialsSecret", OBJECT_NAME, ["s3.keys-1"], ["S3", "", "a/b", "a..b"]
    ),
    max_length("spec.storage.credentialsSecret", 253),
    *by_rule(
        "spec.storage.output.maxSize",
        "must be a quantity of bytes of at least 1Mi",
        ["1Mi", "512Mi", "1Gi"],
        ["1Ki", "a lot", "0"],
    ),
    max_quantity_length("spec.storage.output.maxSize", "1Gi"),
    *in_range("spec.storage.output.maxAgeDays", 1, 3650),
    *by_rule(
        "spec.storage.restoreFrom",
        "set exactly one of uri (a run's folder in the bucket) and run",
        [{"uri": "s3://runs/digits-1a2b3c4d"}, {"run": "other", "step": 4}],
        [{}, {"uri": "s3://runs/digits-1a2b3c4d", "run": "other"}, {"step": 4}],
    ),
    *by_rule(
        "spec.storage.restoreFrom.uri",
        "must be on the claim of storage.uri, which alone the pods have",
        [
            {**_CLAIM, "restoreFrom": {"uri": "pvc://runs/team-b/digits-1a2b3c4d"}},
            {**_CLAIM, "restoreFrom": {"uri": "s3://other/digits-1a2b3c4d"}},
            {**_STORAGE, "restoreFrom": {"uri": "s3://other/digits-1a2b3c4d"}},
        ],
        [
            {**_CLAIM, "restoreFrom": {"uri": "pvc://other/digits-1a2b3c4d"}},
            {**_STORAGE, "restoreFrom": {"uri": "pvc://runs/digits-1a2b3c4d"}},
            {**_CLAIM, "restoreFrom": {"uri": "pvc://runs-2"}},
        ],
        "spec.storage",
    ),
    *by_rule(
        "spec.training.code.uri",
        "must be on the claim of storage.uri, which alone the pods have",
        [
            {"training": _code("pvc://runs/code/a.zip"), "storage": _CLAIM},
            {"training": _code("s3://code/a.zip"), "storage": _CLAIM},
        ],
        [
            {"training": _code("pvc://code/a.zip"), "storage": _CLAIM},
            {"training": _code("pvc://runs/a.zip"), "storage": _STORAGE},
        ],
        "spec",
    ),
    *by_rule(
        "spec.storage.restoreFrom.uri",
        RESTORED_FOLDER,
        [{"uri": "gs://runs/a"}, {"uri": "file:///data/runs/a"}],
        [{"uri": "runs/a"}, {"uri": "s3://key:secret@runs/a"}, {"uri": ""}],
        "spec.storage.restoreFrom",
    ),
    Row(
        "spec.storage.restoreFrom.uri",
        "maxLength",
        {"uri": "s3://" + "a" * 1019},
        {"uri": "s3://" + "a" * 1020},
        "may not be more than 1024 bytes",
        "spec.storage.restoreFrom",
    ),
    *by_rule(
        "spec.storage.restoreFrom.run",
        RESTORED_RUN,
        [{"run": "a"}, {"run": "run-2"}],
        [{"run": "1a"}, {"run": "a.b"}, {"run": ""}],
        "spec.storage.restoreFrom",
    ),
    Row(
        "spec.storage.restoreFrom.run",
        "maxLength",
        {"run": "a" * 41},
        {"run": "a" * 42},
        "may not be more than 41 bytes",
        "spec.storage.restoreFrom",
    ),
    *by_rule(
        "spec.storage.restoreFrom.run",
        "must be another run, not this one; a former run of this name is named by its folder",
        [{"run": "digits-2"}],
        [{"run": "digits"}],
        "spec.storage.restoreFrom",
    ),
    *[
        Row(
            row.path,
            row.keyword,
            {"run": "a", "step": row.good},
            {"run": "a", "step": row.bad},
            row.says,
            "spec.storage.restoreFrom",
        )
        for row in in_range("spec.storage.restoreFrom.step", 0, 2**53 - 1)
    ],
    *by_rule(
        "spec.tracking.wandb.project", "a W&B project", ["a b.c-1"], ["a/b", "a#b", "a\nb", ""]
    ),
    max_length("spec.tracking.wandb.project", 128),
    *by_rule("spec.tracking.wandb.entity", "a W&B team or user", ["team"], ["a:b", "a%b", "a\\b"]),
    max_length("spec.tracking.wandb.entity", 128),
    required("spec.tracking.mlflow.uri", "http://mlflow:5000"),
    *by_rule(
        "spec.tracking.mlflow.uri",
        "must be the http or https URL of an MLflow server",
        ["https://mlflow.example.com/team/a", "databricks", "databricks://profile"],
        ["https://me:hush@mlflow.example.com", "https://mlflow?token=hush", "mlflow:5000"],
    ),
    max_length("spec.tracking.mlflow.uri", 1024, "https://"),
    Row("spec.tracking.mlflow.experiment", "minLength", "a", "", "should be at least 1 chars long"),
    max_length("spec.tracking.mlflow.experiment", 256),
    *in_range("spec.tracking.tensorboard.everySeconds", 5, 3600),
    *SWEEP_ROWS,
    *in_range("spec.checkpoints.keep", 2, 1000),
    _kept_best("minimum", 1, 0, "should be greater than or equal to 1"),
    _kept_best("maximum", 1000, 1001, "should be less than or equal to 1000"),
    *by_rule(
        "spec.checkpoints.keepBest",
        "needs best, which names the metric",
        [{"keepBest": 3, "best": {"metric": "loss"}}],
        [{"keepBest": 3}],
        "spec.checkpoints",
    ),
    required("spec.checkpoints.best.metric", "loss"),
    Row("spec.checkpoints.best.metric", "minLength", "a", "", "should be at least 1 chars long"),
    max_length("spec.checkpoints.best.metric", 253),
    *one_of("spec.checkpoints.best.order", "maximum", "min", "max"),
    *by_rule(
        "spec.checkpoints.everySeconds",
        "must be a number of seconds from 1 to 86400, or auto",
        [1, 86400, "auto"],
        [0, 86401, "always", ""],
    ),
    Row(
        "spec.checkpoints.everySeconds",
        "maxLength",
        "auto",
        "automatically now",
        "may not be more than 16 bytes",
    ),
    *in_range("spec.checkpoints.everySteps", 1, 1_000_000_000),
    *in_range("spec.failures.maxRestarts", 0, 10000),
    *in_range("spec.failures.maxPreemptions", -1, 100000),
    *in_range("spec.failures.maxHangs", -1, 100000),
    *by_rule(
        "spec.failures.hang.afterSeconds",
        "must be a number of seconds from 10 to 86400, or auto",
        [10, 86400, "auto"],
        [9, 86401, "always", ""],
    ),
    Row(
        "spec.failures.hang.afterSeconds",
        "maxLength",
        "auto",
        "automatically now",
        "may not be more than 16 bytes",
    ),
    *one_of("spec.failures.hang.action", "Delete", "Restart", "Report"),
    *in_range("spec.failures.backoff.initialSeconds", 0, 86400),
    *in_range("spec.failures.backoff.factor", 1, 10),
    *in_range("spec.failures.backoff.maxSeconds", 0, 86400),
    *by_rule(
        "spec.failures.backoff.maxSeconds",
        "must not be less than initialSeconds; raise it or lower initialSeconds",
        [{"maxSeconds": 10}, {"initialSeconds": 600}],
        [{"maxSeconds": 9}, {"initialSeconds": 601}],
        "spec.failures.backoff",
    ),
    *in_range("spec.failures.maxAttemptsWithoutProgress", 1, 1000),
    *in_range("spec.failures.keepFailedPodsSeconds", 0, 604800),
    *FAILURE_ROWS,
    *by_rule("spec.scheduling.priorityClassName", OBJECT_NAME, ["high"], ["High", "", "a..b"]),
    *by_rule(
        "spec.scheduling.priorityClassName",
        "must have at most 63 characters with a Volcano queue, which reads it from a label",
        [
            {"queue": {"kind": "Volcano", "name": "a"}, "priorityClassName": "p" * 63},
            {"queue": {"kind": "KAI", "name": "a"}, "priorityClassName": "p" * 64},
        ],
        [{"queue": {"kind": "Volcano", "name": "a"}, "priorityClassName": "p" * 64}],
        "spec.scheduling",
    ),
    max_length("spec.scheduling.priorityClassName", 253),
    required("spec.scheduling.queue.kind", "Kueue"),
    required("spec.scheduling.queue.name", "team-a"),
    *one_of("spec.scheduling.queue.kind", "kueue", "Kueue", "Volcano", "YuniKorn", "KAI"),
    *by_rule("spec.scheduling.queue.name", OBJECT_NAME, ["team-a", "root.a"], ["Team A", ""]),
    max_length("spec.scheduling.queue.name", 63),
    *[
        row
        for path in ("spec.podTemplate", "spec.head.podTemplate", "spec.workers.podTemplate")
        for row in _of_pod_template(path)
    ],
    *in_range("spec.activeDeadlineSeconds", 1, 31536000),
    _budget("amount", "minimum", 1, -1, "should be greater than or equal to 0"),
    _budget("amount", "rule", 0.01, 0, "must be more than 0; leave budget out"),
    _budget("amount", "maximum", 1e9, 2e9, "should be less than or equal to 1e+09"),
    _budget("amount", "required", 1, MISSING, "Required value"),
    *(
        _budget("action", "enum", action, "Stop", 'supported values: "Suspend", "Warn"')
        for action in ("Suspend", "Warn")
    ),
    *NOTIFY_ROWS,
    *in_range("spec.ttlSecondsAfterFinished", 0, 31536000),
]

_STARTED = "spec.training.torchrun.script"
ROWS += [
    *(
        replace(row, path=_started(row.path), at=_started(row.at))
        for row in ROWS
        if row.path.startswith("spec.training.script") and row.at != "spec.training"
    ),
    *by_rule(
        "spec.training.torchrun",
        "set exactly one of script (a file) and module (as with torchrun -m)",
        [{"script": _CODE}, {"module": "my_package.train"}],
        [{}, {"script": _CODE, "module": "my_package.train"}],
    ),
    *by_rule(
        "spec.training.torchrun.module",
        "must be the name of a module, such as my_package.train; a file is named by script",
        [{"module": "train"}, {"module": "a.b_1._c"}],
        [{"module": bad} for bad in ("train/main", "a..b", "a:b", "-m", "a b", "1a", "")],
        "spec.training.torchrun",
    ),
    *by_rule(
        "spec.training.torchrun.module",
        "names a file; name its module, without .py, or set script.path",
        [{"module": "py"}, {"module": "train.pyx"}],
        [{"module": "train.py"}],
        "spec.training.torchrun",
    ),
    Row(
        "spec.training.torchrun.module",
        "maxLength",
        {"module": "a" * 253},
        {"module": "a" * 254},
        "may not be more than 253 bytes",
        "spec.training.torchrun",
    ),
    *by_rule(
        "spec.training.torchrun.args",
        "are those of a module; put the arguments of a script into script.args",
        [{"module": "a", "args": ["--b"]}, {"script": _CODE, "args": []}],
        [{"script": _CODE, "args": ["--b"]}],
        "spec.training.torchrun",
    ),
    *by_rule(
        "spec.training.torchrun.args",
        "must have at most 32768 characters in all; put larger things into a file",
        [{"module": "a", "args": ["a" * 4096] * 8}],
        [{"module": "a", "args": [*["a" * 4096] * 8, "a"]}],
        "spec.training.torchrun",
    ),
    Row(
        "spec.training.torchrun.args",
        "maxItems",
        {"module": "a", "args": ["--a"] * 100},
        {"module": "a", "args": ["--a"] * 101},
        "must have at most 100 items",
        "spec.training.torchrun",
    ),
    Row(
        "spec.training.torchrun.args[]",
        "maxLength",
        {"module": "a", "args": ["a" * 4096]},
        {"module": "a", "args": ["a" * 4097]},
        "may not be more than 4096 bytes",
        "spec.training.torchrun",
    ),
    *by_rule(
        f"{_STARTED}.path",
        "is relative to training.code, which is not set; set it, or write the absolute path",
        [
            {"torchrun": {"script": {"path": "src/train.py"}}, "code": CODE},
            {"torchrun": {"script": {"path": "/train.py"}}},
        ],
        [{"torchrun": {"script": {"path": "src/train.py"}}}],
        "spec.training",
    ),
]
