"""What models and optimizers are made of, which has to stay: a resumed run makes them anew.

Layers that are added in the middle are in each checkpoint from then on, and nothing could take them
when it is restored. So this is said when it is saved.
"""

from collections.abc import Mapping

import torch
from torch.optim.optimizer import Optimizer

from .encoding import TAG, NotSavable
from .sharded_state import Encoded, is_description
from .stateful_objects import Stateful

Structure = Mapping[str, tuple[int, ...]] | list[int]
"""Of a model the shapes of its tensors by name; of an optimizer the parameters of each group."""


def structure_of(thing: Stateful, state: Encoded) -> Structure | None:
    """What a restore of the state finds again, or fails; None: the object takes it in its own way.

    Args:
        thing: the object.
        state: its state of now.
    """
    if isinstance(thing, Optimizer):
        own = type(thing).load_state_dict is not Optimizer.load_state_dict
        if own or thing._optimizer_load_state_dict_pre_hooks:
            return None
        return [len(group["params"]) for group in thing.param_groups]
    if not isinstance(thing, torch.nn.Module) or not _is_strict(thing):
        return None
    items = state.tree.get("items") if isinstance(state.tree, dict) else None
    if not isinstance(items, dict) or TAG in items:
        return None
    found = {}
    for name, value in items.items():
        if is_description(value):
            found[name] = tuple(value["shape"])
        elif isinstance(value, torch.Tensor) and not name.endswith("_extra_state"):
            found[name] = tuple(value.shape)
    return found


def require_same(name: str, then: Structure | None, now: Structure | None) -> None:
    """Make sure that an object is made of what it was made of.

    Args:
        name: of the object.
        then: when the session was made.
        now: when its state is saved.

    Raises:
        NotSavable: it is not, and a resumed run could not restore it.
    """
    if then is None or now is None or then == now:
        return
    if isinstance(then, list) or isinstance(now, list):
        raise NotSavable(
            f"{name} has groups of {now} parameters, and had {then} when the session was made: a "
            "resumed run could not restore it; make the optimizer with all of its groups before "
            "the session, also those of layers that are trained later"
        )
    tensor = next(key for key in (*now, *then) if then.get(key) != now.get(key))
    if tensor not in then:
        what = f"has {tensor}, which it had not"
    elif tensor not in now:
        what = f"has no longer {tensor}, which it had"
    else:
        what = f"has {tensor} of shape {now[tensor]}, which had shape {then[tensor]}"
    raise NotSavable(
        f"{name} {what} when the session was made: a resumed run makes it as then, and could not "
        "restore it; add all layers before the session, frozen or unused until they are trained"
    )


def _is_strict(model: torch.nn.Module) -> bool:
    """Whether PyTorch alone decides which tensors the model takes."""
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        return False
    for module in model.modules():
        hooks = (*module._load_state_dict_pre_hooks.values(),)
        hooks += (*module._load_state_dict_post_hooks.values(),)
        calls = [type(module)._load_from_state_dict, *(getattr(h, "hook", h) for h in hooks)]
        if not all(str(getattr(c, "__module__", "")).startswith("torch.") for c in calls):
            return False
    return True
