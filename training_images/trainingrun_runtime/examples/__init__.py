"""Examples in the image: `linear` (the smallest), `digits` (real data), `loader` (a data loader
with worker processes) and `mnist_resnet18`.

Each is named in `training.function`, such as `trainingrun_runtime.examples.digits:train`, and each
repeats itself to the bit: the batch follows from the step, or from the loader's saved position, so
an interrupted run ends with the weights of an undisturbed one.
"""
