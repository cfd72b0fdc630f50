"""Examples in the image: `linear` (the smallest), `digits` (real data), `loader` (a data loader
with worker processes), `ray_data`, `combined` (mixed precision and more), `fsdp` (sharded), `curve`
(TensorBoard), `tuned` (for a sweep), `mnist_resnet18`, and `batch_inference` with the weights of a
run. Those of other frameworks are in `frameworks`.

Each training is named in `training.function`, such as `trainingrun_runtime.examples.digits:train`,
and repeats itself to the bit: the batch follows from the step, or from the loader's saved position,
so an interrupted run ends with the weights of an undisturbed one.
"""
