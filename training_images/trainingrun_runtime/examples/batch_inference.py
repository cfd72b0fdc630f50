"""Batch inference with Ray Data: the digits that the model of a run of `digits` reads in images.

    python -m trainingrun_runtime.examples.batch_inference s3://runs/demo/digits-1a2b3c4d

It takes the best checkpoint, or the newest intact one, and prints how many of the images that the
training has not seen are read well; `--to` keeps the answers. `ray.init` finds a cluster by
RAY_ADDRESS, else it begins a Ray on this machine.
"""

import argparse
from typing import Any

import numpy as np
import ray
import ray.data
import torch

from trainingrun_runtime import results

from .digits import data, network


class Reader:
    """Reads digits; each actor of Ray Data makes one, so the model is loaded once for many batches.

    Args:
        uri: Of a checkpoint, or a run's folder.
    """

    def __init__(self, uri: str) -> None:
        self._model = network()
        results.load(uri, self._model)
        self._model.eval()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Images to digits."""
        with torch.inference_mode():
            scores = self._model(torch.from_numpy(batch["image"]))
        return {"label": batch["label"], "answer": scores.argmax(1).numpy()}


def answers(uri: str, actors: int = 1, batch_size: int = 64, seed: int = 0) -> Any:
    """The held-out images' labels and answers, as a data set of Ray.

    Args:
        uri: Of a checkpoint, or a run's folder.
        actors: Models at work at once.
        batch_size: Images that a model reads at once.
        seed: Of the training: it decides which images were held out.
    """
    _, images, _, labels = data(seed)
    rows = zip(images.numpy(), labels.tolist(), strict=True)
    dataset = ray.data.from_items([{"image": image, "label": label} for image, label in rows])
    return dataset.map_batches(
        Reader,
        fn_constructor_args=(uri,),
        compute=ray.data.ActorPoolStrategy(size=actors),
        batch_size=batch_size,
    )


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(description="Read images with the model of a run of digits.")
    found.add_argument("run", help="the run's folder")
    found.add_argument("--to", help="folder or URI for the answers, as Parquet")
    found.add_argument("--actors", type=int, default=1, help="models at work at once")
    return found


def main() -> None:
    """The command."""
    arguments = parser().parse_args()
    best = results.open(arguments.run).best_checkpoint
    found = answers(best.uri if best else arguments.run, arguments.actors).materialize()
    if arguments.to:
        found.write_parquet(arguments.to)
    table = found.to_pandas()
    right = (table["answer"] == table["label"]).mean()
    print(f"{len(table)} images, {right:.4f} of them read well")


if __name__ == "__main__":
    main()
