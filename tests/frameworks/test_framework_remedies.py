"""What Transformers and DeepSpeed refuse is answered with what to do; each raises it itself."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import TrainingArguments

from support.ports import free_port
from trainingrun_runtime.known_errors import remedies
from trainingrun_runtime.known_errors.remedies import REMEDIES

PLACE = "/some/folder"


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers begins nothing distributed, whatever tests before this one have set."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def arguments(**wanted: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=PLACE, **wanted)


def importing_adam_w() -> None:
    exec("from transformers import AdamW", {})


REFUSED = [
    ("eval-strategy", lambda: arguments(evaluation_strategy="epoch")),
    (
        "processing-class",
        lambda: transformers.Trainer(torch.nn.Linear(1, 1), arguments(), tokenizer=None),
    ),
    (
        "processing-class",
        lambda: transformers.Seq2SeqTrainer(
            torch.nn.Linear(1, 1), transformers.Seq2SeqTrainingArguments(PLACE), tokenizer=None
        ),
    ),
    (
        "eval-strategy",
        lambda: transformers.Seq2SeqTrainingArguments(PLACE, evaluation_strategy="no"),
    ),
    ("use-cpu", lambda: arguments(no_cuda=True)),
    ("warmup-steps", lambda: arguments(warmup_ratio=0.1)),
    ("group-by-length", lambda: arguments(group_by_length=True)),
    ("logging-dir", lambda: arguments(logging_dir=PLACE)),
    ("needless-arguments", lambda: arguments(overwrite_output_dir=True)),
    ("adam-w", importing_adam_w),
    ("adam-w", lambda: transformers.AdamW),
]


@pytest.mark.parametrize(("id_", "action"), REFUSED)
def test_what_transformers_no_longer_takes_is_answered_with_what_it_takes(
    id_: str, action: Callable[[], Any]
) -> None:
    with pytest.raises((TypeError, AttributeError, ImportError)) as caught:
        action()
    found = remedies.find(caught.value)
    assert found is REMEDIES[id_]


def test_what_transformers_takes_instead_is_there() -> None:
    arguments(eval_strategy="no", use_cpu=True, train_sampling_strategy="group_by_length")
    assert arguments(warmup_steps=0.1).get_warmup_steps(100) == 10
    transformers.Trainer(torch.nn.Linear(1, 1), arguments(), processing_class=None)


def without_a_compiler(code: str, tmp_path: Path) -> str:
    """What a process prints that finds no compiler."""
    tools = tmp_path / "bin"
    tools.mkdir()
    environment = {
        **os.environ,
        "PATH": str(tools),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"},
    }
    environment.pop("LOCAL_SIZE", None)
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


BEGIN = "import deepspeed; deepspeed.init_distributed('gloo')"
EXPLAIN = """
from trainingrun_runtime.known_errors import remedies
try:
    {code}
except Exception as error:
    found = remedies.find(error)
    print(next(name for name, one in remedies.REMEDIES.items() if one is found))
"""


def test_without_a_compiler_deepspeed_begins_on_the_ranks_alone(tmp_path: Path) -> None:
    code = "from trainingrun_runtime.worker.deepspeed_import import leave_out_extension\n"
    code += f"leave_out_extension()\n{BEGIN}\nprint('it has begun')"
    assert without_a_compiler(code, tmp_path) == "it has begun"


@pytest.mark.parametrize(
    "code",
    [
        BEGIN,
        "import torch; from deepspeed.ops.adam import DeepSpeedCPUAdam as Adam; "
        "Adam([torch.zeros(1, requires_grad=True)])",
        "import torch; from deepspeed.ops.adam import FusedAdam as Adam; "
        "Adam([torch.zeros(1, requires_grad=True)])",
    ],
    ids=["extension", "cpu adam", "fused adam"],
)
def test_what_deepspeed_cannot_compile_is_explained(tmp_path: Path, code: str) -> None:
    assert without_a_compiler(EXPLAIN.format(code=code), tmp_path) == "no-compiler"
