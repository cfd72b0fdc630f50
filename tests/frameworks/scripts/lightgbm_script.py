"""Ray's documented way to train with LightGBM: LightGBMTrainer and its report callback."""

import json
import os
import time

import lightgbm
import ray.data
import ray.train
from ray.train import ScalingConfig
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params
from sklearn.datasets import load_digits


def note(env):
    time.sleep(0.1)
    if ray.train.get_context().get_world_rank() == 0:
        name = f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log"
        with open(name, "a") as lines:
            lines.write(f"{time.time()} {env.iteration + 1}\n")


def train_fn_per_worker(config: dict):
    # LightGBM refuses the Arrow types that Ray Data gives to the columns.
    train_df = ray.train.get_dataset_shard("train").materialize().to_pandas().astype("float64")
    train_set = lightgbm.Dataset(train_df.drop("y", axis=1), label=train_df["y"])

    starting_model = None
    remaining_iters = config["rounds"]
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        starting_model = RayTrainReportCallback.get_model(checkpoint)
        remaining_iters -= starting_model.current_iteration()

    lightgbm.train(
        {
            "objective": "multiclass",
            "num_class": 10,
            "max_depth": 3,
            "tree_learner": "data_parallel",
            "pre_partition": True,
            "num_threads": 1,
            "verbosity": -1,
            **get_network_params(),
        },
        train_set,
        num_boost_round=remaining_iters,
        valid_sets=[train_set],
        init_model=starting_model,
        callbacks=[note, RayTrainReportCallback(frequency=10)],
    )


images, labels = load_digits(return_X_y=True)
rows = [
    {**{f"x{i}": x for i, x in enumerate(r)}, "y": y} for r, y in zip(images, labels, strict=True)
]
trainer = LightGBMTrainer(
    train_fn_per_worker,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    datasets={"train": ray.data.from_items(rows)},
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
booster = RayTrainReportCallback.get_model(result.checkpoint)
print("rounds", booster.current_iteration())
