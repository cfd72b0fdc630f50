#!/usr/bin/env bash
# torch 2.13.0: inside of another module, a parameter under `checkpoint_wrapper` has one name in
# `named_parameters()` and another one in `state_dict()`.
#
# The wrapper takes its prefix out of the keys of a state by a hook, which works at any depth, and out
# of the names of its parameters by overriding `named_parameters`, which the module around it does not
# call: that one walks through modules. So code that picks the parameters out of a model's state by
# their names finds all of them while the model is the wrapper itself, and none once it is a layer;
# an average of weights, a digest or a filter then works on nothing, without an error.
# `get_model_state_dict` and `named_parameters` differ in the same way.
#
# Output as seen:
#   torch 2.13.0: the wrapper itself: parameters ['bias', 'weight'], state ['bias', 'weight']
#   torch 2.13.0: as a layer: parameters ['0._checkpoint_wrapped_module.bias',
#     '0._checkpoint_wrapped_module.weight'], state ['0.bias', '0.weight']
#   in both: 0 of 2
#
# Fails if that changes. Needs Python 3.10 or later, a package registry, and some GB of disk unless
# pip finds PyTorch's build for CPUs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cat > "$folder/try.py" <<'PYTHON'
import warnings

warnings.filterwarnings("ignore")

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict

version = torch.__version__.partition("+")[0]
wrapper = checkpoint_wrapper(torch.nn.Linear(2, 2))
for what, model in (("the wrapper itself", wrapper), ("as a layer", torch.nn.Sequential(wrapper))):
    names = sorted(name for name, _ in model.named_parameters())
    state = sorted(model.state_dict())
    assert state == sorted(get_model_state_dict(model))
    print(f"torch {version}: {what}: parameters {names}, state {state}")
both = len({*names} & {*state})
print(f"in both: {both} of {len(names)}")
assert (len(names), both) == (2, 0)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
