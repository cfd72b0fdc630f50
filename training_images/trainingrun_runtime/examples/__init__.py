"""Examples in the image: `linear` (the smallest), `digits` (real data) and `mnist_resnet18`.

Each is named in `training.function`, such as `trainingrun_runtime.examples.digits:train`, and each
repeats itself to the bit: the batch is a function of the step alone, so an interrupted run ends
with the weights of an undisturbed one.
"""
