#!/usr/bin/env bash
# transformers 5.23.0: with data that has no length and is passed more than once, a Trainer that is
# resumed trains on other samples than one that was not interrupted.
#
# Of an IterableDataset the number of steps of an epoch is not known, so it is taken to be
# `max_steps`. A resume divides the steps that are done by it: it is always in epoch 0, and leaves out
# so many batches of that, though the stream ends before. The epoch is then empty, and the next one
# begins with the first sample. The number of steps is right, and nothing is said.
#
# Output as seen, of a stream of 50 samples, and 120 steps of one sample each:
#   transformers 5.23.0, whole: steps 71 to 75 have samples [20, 21, 22, 23, 24]
#   transformers 5.23.0, resumed at step 70: steps 71 to 75 have samples [0, 1, 2, 3, 4]
#
# Fails if that changes. Needs Python 3.10 or later, a package registry, and some GB of disk unless
# pip finds PyTorch's build for CPUs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 torch==2.13.0
cat > "$folder/try.py" <<'PYTHON'
import sys
import tempfile

import torch
import transformers
from transformers import Trainer, TrainingArguments

SAMPLES, STEPS, SAVED = 50, 120, 70


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number in range(SAMPLES):
            yield {"x": torch.tensor([float(number)])}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def forward(self, x):
        self.seen.append(int(x[0, 0]))
        return {"loss": self.layer(x).mean()}


def samples(folder, checkpoint=None):
    model = Model()
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        save_steps=SAVED,
        per_device_train_batch_size=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    Trainer(model, arguments, train_dataset=Stream()).train(resume_from_checkpoint=checkpoint)
    return model.seen


with tempfile.TemporaryDirectory() as folder:
    whole = samples(folder)[SAVED:]
    resumed = samples(f"{folder}/again", f"{folder}/checkpoint-{SAVED}")
if len(whole) != len(resumed):
    sys.exit(f"this has changed: {len(resumed)} steps after the resume instead of {len(whole)}")
for how, seen in (("whole", whole), (f"resumed at step {SAVED}", resumed)):
    print(f"transformers {transformers.__version__}, {how}: steps {SAVED + 1} to {SAVED + 5} have "
          f"samples {seen[:5]}")
if (whole[:5], resumed[:5]) != ([20, 21, 22, 23, 24], [0, 1, 2, 3, 4]):
    sys.exit("this has changed")
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/try.py" 2> "$folder/errors" | grep '^transformers ' ||
  { cat "$folder/errors" >&2; exit 1; }
