"""Ray's documented way to train with XGBoost: XGBoostTrainer and its report callback."""

import json
import os
import time

import ray.data
import ray.train
import xgboost
from ray.train import ScalingConfig
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer
from sklearn.datasets import load_digits
from xgboost.callback import TrainingCallback


class Noting(TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        time.sleep(0.1)
        if ray.train.get_context().get_world_rank() == 0:
            name = f"{os.environ['STEP_LOG_FOLDER']}/{os.getpid()}.log"
            with open(name, "a") as lines:
                lines.write(f"{time.time()} {model.num_boosted_rounds()}\n")
        return False


def train_fn_per_worker(config: dict):
    train_df = ray.train.get_dataset_shard("train").materialize().to_pandas()
    dtrain = xgboost.DMatrix(train_df.drop("y", axis=1), label=train_df["y"])

    starting_model = None
    remaining_iters = config["rounds"]
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        starting_model = RayTrainReportCallback.get_model(checkpoint)
        remaining_iters -= starting_model.num_boosted_rounds()

    xgboost.train(
        {"objective": "multi:softprob", "num_class": 10, "max_depth": 3, "nthread": 1},
        dtrain=dtrain,
        evals=[(dtrain, "train")],
        num_boost_round=remaining_iters,
        xgb_model=starting_model,
        verbose_eval=False,
        callbacks=[Noting(), RayTrainReportCallback(frequency=10)],
    )


images, labels = load_digits(return_X_y=True)
rows = [
    {**{f"x{i}": x for i, x in enumerate(r)}, "y": y} for r, y in zip(images, labels, strict=True)
]
trainer = XGBoostTrainer(
    train_fn_per_worker,
    train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
    datasets={"train": ray.data.from_items(rows)},
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
booster = RayTrainReportCallback.get_model(result.checkpoint)
print("rounds", booster.num_boosted_rounds())
