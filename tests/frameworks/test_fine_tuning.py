"""The examples of fine-tuning on a real Ray: killed, preempted, and what is left of them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime import results
from trainingrun_runtime.examples.frameworks import full_fine_tuning, language_model, lora
from trainingrun_runtime.examples.frameworks.language_model import Recipe

STEPS, EVALUATED = 69, 15
"""Steps of an epoch of full fine-tuning, and from one evaluation to the next."""
FOR_LARGE_MODELS = {"bf16": True, "checkpoint_activations": True}
BEST = ContractCheckpoints(keep=1, best_metric="eval_loss", best_order="min", every_seconds=300)


@pytest.fixture
def a_best_run(a_run: Callable[..., Run]) -> Callable[..., Run]:
    """Makes runs that keep the newest checkpoint, and that of the smallest `eval_loss`."""

    def make(example: str, **config: Any) -> Run:
        run = a_run(example, batch_size=16, evaluate_every=EVALUATED, **FOR_LARGE_MODELS, **config)
        run.contract = run.contract.model_copy(update={"checkpoints": BEST})
        return run

    return make


@pytest.fixture(scope="module")
def base(ray: LocalRay, journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small model that was trained on Python's reference."""
    folder = tmp_path_factory.mktemp("base")
    function = f"{full_fine_tuning.__name__}:train"
    run = Run(ray, folder, function, {"lr": 0.003, "batch_size": 16})
    undisturbed(run, journal)
    language_model.export(
        run.bucket.root, str(folder / "model"), full_fine_tuning.Config, language_model.base_model
    )
    return folder / "model"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other text than the reference, as a file of a user's."""
    file = tmp_path_factory.mktemp("data") / "train.jsonl"
    sources = sorted(Path(torch.__file__).parent.glob("nn/modules/[a-l]*.py"))
    file.write_text("".join(json.dumps({"text": s.read_text()[:8000]}) + "\n" for s in sources))
    return file


def test_each_line_of_the_data_is_a_text_also_with_separators_in_it(tmp_path: Path) -> None:
    """JSON may have the separators of Unicode as they are, which are no ends of its lines."""
    texts = [f"é{separator}{'word ' * 60}" for separator in "\u2028\u2029\x85"]
    found = []
    for number, (ascii_alone, end) in enumerate([(True, "\n"), (False, "\n"), (False, "\r\n\n")]):
        file = tmp_path / f"{number}.jsonl"
        lines = [json.dumps({"text": text}, ensure_ascii=ascii_alone) for text in texts]
        file.write_bytes("".join(line + end for line in lines).encode())
        found.append(language_model.blocks(Recipe(data=str(file))))
    for train, held_out in found[1:]:
        assert torch.equal(train, found[0][0])
        assert torch.equal(held_out, found[0][1])


def weights(run: Run, model: Any) -> dict[str, torch.Tensor]:
    """Those of the newest checkpoint, in a model."""
    assert results.load(run.bucket.root, model).step == run.progress().step
    return dict(model.state_dict())


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def loss(folder: Path, settings: Recipe) -> float:
    """Of a model in Hugging Face's layout, on the blocks that are held out."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _, held_out = language_model.blocks(settings)
    with torch.no_grad():
        return float(model(input_ids=held_out, labels=held_out).loss)


def test_a_run_of_full_fine_tuning_ends_with_equal_weights_and_leaves_its_best_model(
    a_best_run: Callable[..., Run], journal: Journal, tmp_path: Path
) -> None:
    whole = a_best_run("full_fine_tuning")
    undisturbed(whole, journal)
    run = a_best_run("full_fine_tuning", step_seconds=0.15)
    noticed, killed = disturb(run, journal, "FSDP2, session", kill_at=20, notice_at=50)
    assert noticed == 0
    assert killed <= EVALUATED
    assert set(journal.steps()) == set(range(1, STEPS + 1))
    settings = full_fine_tuning.Config(**run.contract.config)
    model = language_model.base_model
    assert_equal(weights(run, model(settings).float()), weights(whole, model(settings).float()))

    found = results.open(run.bucket.root)
    best = found.best_checkpoint
    assert best is not None
    assert best.metrics["eval_loss"] <= min(c.metrics["eval_loss"] for c in found.checkpoints)
    to = tmp_path / "model"
    uri = language_model.export(run.bucket.root, str(to), full_fine_tuning.Config, model)
    assert uri == best.uri
    there = (tmp_path / "uploaded").as_uri()
    language_model.export(run.bucket.root, there, full_fine_tuning.Config, model)
    for file in to.iterdir():
        assert (tmp_path / "uploaded" / file.name).read_bytes() == file.read_bytes()
    assert loss(to, settings) == pytest.approx(best.metrics["eval_loss"], abs=0.02)
    encode = AutoTokenizer.from_pretrained(to)
    begin = encode("The import statement", return_tensors="pt").input_ids
    answer = AutoModelForCausalLM.from_pretrained(to).generate(begin, max_new_tokens=8)
    assert encode.decode(answer[0]).startswith("The import statement")


def test_a_run_of_lora_ends_with_equal_weights_and_leaves_a_merged_model(
    a_best_run: Callable[..., Run], journal: Journal, tmp_path: Path, base: Path, data: Path
) -> None:
    given = {"base": str(base), "data": str(data), "lr": 0.01, "epochs": 2}
    whole = a_best_run("lora", **given)
    undisturbed(whole, journal)
    steps = max(journal.steps())
    run = a_best_run("lora", **given, step_seconds=0.15)
    lost = disturb(run, journal, "LoRA, session", kill_at=10, notice_at=steps // 2)
    assert lost == (0, 0)
    assert sorted(journal.steps()) == list(range(1, steps + 1))
    settings = lora.Config(**run.contract.config)
    assert_equal(weights(run, lora.model(settings)), weights(whole, lora.model(settings)))

    found = results.open(run.bucket.root)
    best = found.best_checkpoint
    assert best is not None
    assert best.step % EVALUATED == 0 or best.step == steps
    table = found.metrics
    evaluated = {n for n in range(1, steps + 1) if n % EVALUATED == 0 or n == steps}
    assert set(table[table["eval_loss"].notna()]["step"]) == evaluated, "it is of its step alone"
    frozen = (base / "model.safetensors").stat().st_size
    assert best.size < frozen / 2, "of the model itself nothing is saved"
    command = ["-m", lora.__name__, run.bucket.root, "--to", str(tmp_path / "merged")]
    printed = subprocess.check_output([sys.executable, *command, "--prompt", "class"], text=True)
    # Before it DeepSpeed may print, which PEFT's Accelerate imports where it is installed.
    _, _, text = printed.partition(f" has the model of {best.uri}\n")
    assert text.startswith("class"), printed
    merged = loss(tmp_path / "merged", settings)
    assert merged == pytest.approx(best.metrics["eval_loss"], abs=0.02)
    assert merged < loss(base, settings) - 0.1
