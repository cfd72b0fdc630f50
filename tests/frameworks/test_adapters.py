"""What a session saves of a model of PEFT, and with which model below it that is restored."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, VeraConfig, get_peft_model
from transformers import LlamaForCausalLM

from support import checkpoints
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.encoding import NotSavable
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.state_comparison import Comparison
from trainingrun_runtime.checkpoints.stateful_objects import restorable
from trainingrun_runtime.examples.frameworks.language_model import Recipe, base_model


def adapted(kind: Any = None, seed: int = 0, **settings: Any) -> Any:
    """A small model with adapters, which all have random numbers of their own."""
    kind = kind or LoraConfig(target_modules="all-linear", **settings)
    model = get_peft_model(base_model(Recipe(seed=seed)), kind)
    torch.manual_seed(seed + 7)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    return model


def save(model: Any, folder: Path) -> int:
    """Save it as a session does; bytes of its files."""
    states = snapshot.encoded(restorable({"model": model}), {"model"})
    snapshot.try_out(states)
    files = snapshot.take(states, Comparison(set(), {}), Position(step=7), 0, 1)
    checkpoints.write(files, folder)
    return sum(file.stat().st_size for file in folder.iterdir())


def restore(model: Any, folder: Path) -> Any:
    snapshot.restore(LocalFiles(folder), restorable({"model": model}), 0, 1)
    return model


KINDS = {
    "lora": lambda: LoraConfig(target_modules="all-linear"),
    "dora": lambda: LoraConfig(target_modules="all-linear", use_dora=True),
    "lora and a layer of the model's": lambda: LoraConfig(
        target_modules=["q_proj"], modules_to_save=["lm_head"]
    ),
    "vera": lambda: VeraConfig(target_modules=["q_proj"], r=4),
    "prompt": lambda: PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_comes_back_in_another_process_s_model(kind: str, tmp_path: Path) -> None:
    saved = adapted(KINDS[kind]())
    size = save(saved, tmp_path)
    whole = sum(p.nbytes for p in base_model(Recipe()).parameters())
    assert size < whole, "the frozen model is not in it"
    fresh = get_peft_model(base_model(Recipe()), KINDS[kind]())
    tokens = torch.arange(20).view(1, 20)
    with torch.no_grad():
        wanted = saved.eval()(input_ids=tokens).logits
        assert not torch.equal(fresh.eval()(input_ids=tokens).logits, wanted)
        assert torch.equal(restore(fresh, tmp_path)(input_ids=tokens).logits, wanted)


def test_what_was_frozen_of_an_adapter_comes_back_too(tmp_path: Path) -> None:
    def half_frozen(seed: int) -> Any:
        model = get_peft_model(base_model(Recipe()), LoraConfig(target_modules="all-linear"))
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                torch.nn.init.normal_(parameter.requires_grad_(False))
        return model

    saved, fresh = half_frozen(1), half_frozen(2)
    save(saved, tmp_path)
    restore(fresh, tmp_path)
    state = fresh.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in saved.state_dict().items())


def test_another_model_below_the_adapters_is_refused_by_name(tmp_path: Path) -> None:
    save(adapted(), tmp_path)
    sentence = "another base_model.model.model.embed_tokens.weight.*from the same weights"
    with pytest.raises(ValueError, match=sentence):
        restore(adapted(seed=1), tmp_path)


def test_a_frozen_parameter_that_is_trained_later_is_refused(tmp_path: Path) -> None:
    model = adapted()
    objects = restorable({"model": model})
    snapshot.encoded(objects, {"model"})
    model.base_model.model.lm_head.weight.requires_grad_(True)
    with pytest.raises(NotSavable, match=r"lm_head\.weight, which is trained now"):
        snapshot.encoded(objects, {"model"})


def test_another_dtype_and_another_factor_are_refused(tmp_path: Path) -> None:
    save(adapted(), tmp_path)
    rounded = get_peft_model(
        LlamaForCausalLM.to(base_model(Recipe()), torch.bfloat16),
        LoraConfig(target_modules="all-linear"),
    )
    with pytest.raises(ValueError, match=r"another .*\.weight"):
        restore(rounded, tmp_path)
    with pytest.raises(ValueError, match=r"another .*scaling\.default.*same lora_alpha"):
        restore(adapted(lora_alpha=32), tmp_path)
