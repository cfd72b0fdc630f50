"""Models with adapters of PEFT: what is trained is saved, and of the frozen model a fingerprint.

The frozen model is made by the training function in each attempt, often from tens of gigabytes that
never change. An adapter says nothing without it, so it has to be the same one again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .sharded_state import is_sharded

_PEFT = {"PeftModel", "PeftMixedModel"}


class Adapters(torch.nn.Module):
    """The trained part of a model of PEFT, under the names that it has in that model.

    It has the model's own tensors, so what is put into it is in the model. Its parameters are those
    that are trained when it is made, and all others of the adapters; its buffers are the model's.

    Args:
        model: with its adapters.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.frozen: dict[str, int | float] = {}
        """What the checkpoint does not hold and the adapters were trained with, by name: of frozen
        parameters, unless they are sharded, the XOR of their elements; of adapters their factor."""
        self._left_out: dict[str, torch.Tensor] = {}
        # PEFT itself tells the parameters of its adapters by this part of their names.
        own = getattr(getattr(model, "base_model", None), "prefix", None)
        for path, module in model.named_modules(remove_duplicate=False):
            for name, parameter in module._parameters.items():
                place = f"{path}.{name}".lstrip(".")
                if parameter is None:
                    continue
                if parameter.requires_grad or (own and own in place):
                    self._at(path).register_parameter(name, parameter)
                else:
                    self._left_out[place] = parameter
                    self.frozen.update(_fingerprint(place, parameter))
            for name, buffer in module._buffers.items():
                if name not in module._non_persistent_buffers_set:
                    self._at(path).register_buffer(name, buffer)
            self.frozen.update(_factors(path, module))

    def thawed(self) -> str | None:
        """The first parameter that is trained now and was frozen when this was made; none."""
        return next((name for name, it in self._left_out.items() if it.requires_grad), None)

    def _at(self, path: str) -> torch.nn.Module:
        """The module of a name, which holds nothing until something is put into it."""
        module: torch.nn.Module = self
        for name in filter(None, path.split(".")):
            if name not in module._modules:
                module.add_module(name, torch.nn.Module())
            module = module.get_submodule(name)
        return module


def has_adapters(thing: Any) -> bool:
    """Whether it is a model of PEFT."""
    return any(kind.__name__ in _PEFT for kind in type(thing).__mro__)


def other_base(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first name in both under which the frozen models differ; None: they are alike.

    Args:
        then: `Adapters.frozen` of the checkpoint.
        now: that of this run. What is quantized in one of them alone has no number there.
    """
    return next((name for name in now if name in then and then[name] != now[name]), None)


def _fingerprint(place: str, parameter: torch.Tensor) -> Iterator[tuple[str, int]]:
    if parameter.is_floating_point() and not parameter.is_meta and not is_sharded(parameter):
        yield place, int(torch.hash_tensor(parameter.detach()).view(torch.int64))


def _factors(path: str, module: torch.nn.Module) -> Iterator[tuple[str, float]]:
    """By which LoRA multiplies what its matrices add: `lora_alpha / r`, or by its square root."""
    factors = getattr(module, "scaling", None)
    for adapter, factor in factors.items() if isinstance(factors, dict) else ():
        if isinstance(factor, int | float):
            yield f"{path}.scaling.{adapter}", float(factor)
