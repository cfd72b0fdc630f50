"""Of Ray's functions and arguments that there are no longer, or that work otherwise."""

from .remedy import Remedy


def _keyword(owner: str, names: str) -> str:
    """Of the error for an argument that there is no longer."""
    return rf"{owner}\.__init__\(\) got an unexpected keyword argument '({names})'"


_NAME = r"cannot import name '(?:{0})' from 'ray\.|'ray\.[\w.]+' has no attribute '(?:{0})'"
_FUNCTION = (
    r"cannot import name '(?:{0})' from 'ray\.train'|'ray\.train' has no attribute '(?:{0})'"
)
_MODULE = r"[Nn]o module (?:named )?'ray\.(?:{0})'"
_TRANSFORMERS = (
    "use TorchTrainer, with transformers.Trainer in its function, and prepare_trainer and "
    "RayTrainReportCallback of ray.train.huggingface.transformers"
)
_LIGHTNING = (
    "use TorchTrainer, with Lightning's Trainer in its function, and RayDDPStrategy, "
    "RayLightningEnvironment and prepare_trainer of ray.train.lightning"
)
_FOLDER = (
    "write files into a folder, pass Checkpoint.from_directory(folder) to ray.train.report, and "
    "read them below checkpoint.as_directory(): a checkpoint is a folder"
)
_RESTORE = (
    "take it out: the run's newest checkpoint is ray.train.get_checkpoint() in the training "
    "function, and storage.restoreFrom of the TrainingRun begins from another run's"
)
_BOOSTING = "a training function that calls the library's train() with RayTrainReportCallback"
_PREDICT = "use map_batches of a ray.data.Dataset with a class that loads the model"

REMOVED: tuple[Remedy, ...] = (
    Remedy(
        "checkpoint-of-a-dictionary",
        r"`(from_dict|from_bytes)\(\)`|'Checkpoint'( object)? has no attribute "
        r"'(to_dict|to_bytes|from_bytes|from_model|get_model|get_preprocessor|"
        r"get_internal_representation)'|" + _keyword("Checkpoint", "data_dict|local_path"),
        _FOLDER,
    ),
    Remedy(
        "path-of-a-checkpoint",
        r"unsupported operand type\(s\) for /: 'str' and 'str'|"
        r"No such file or directory: '[^']*checkpoints/\d{4}-\d{6}/",
        'read files below checkpoint.as_directory(), as pathlib.Path(folder, "model.pt"): '
        "checkpoint.path is text, and a place in the bucket",
    ),
    Remedy(
        "result-of-a-path",
        r"Failed to restore the Result object: checkpoint_manager_snapshot",
        "open the run's folder with trainingrun_runtime.results.open(uri): Result.from_path reads "
        "the script's own run alone",
    ),
    Remedy(
        "checkpoint-of-a-uri",
        r"`from_uri\(\)`|" + _keyword("Checkpoint", "uri"),
        'use ray.train.Checkpoint(path="s3://…")',
    ),
    Remedy(
        "checkpoint-to-a-uri",
        r"'Checkpoint' object has no attribute '(to_uri|uri)'",
        "pass the checkpoint to ray.train.report, which uploads it; `trainingrun checkpoints list` "
        "shows where the run's checkpoints are",
    ),
    Remedy(
        "checkpoint-of-a-checkpoint",
        r"'\w*Checkpoint' has no attribute 'from_checkpoint'",
        "use the checkpoint itself, and read its files below checkpoint.as_directory()",
    ),
    Remedy("restore", r"`restore` and `can_restore`", _RESTORE),
    Remedy("resume-from-checkpoint", r"`resume_from_checkpoint`", _RESTORE),
    Remedy(
        "metadata",
        r"`get_metadata` was|<Framework>Trainer\(metadata",
        "pass it in train_loop_config",
    ),
    Remedy(
        "preprocessor",
        _keyword(r"\w+Trainer", "preprocessor"),
        "transform the ray.data.Dataset before it is passed in datasets",
    ),
    Remedy(
        "run-config",
        r"RunConfig\((verbose|sync_config|progress_reporter|log_to_file)\)|"
        + _keyword("RunConfig", "local_dir"),
        "take the argument out: the TrainingRun decides about storage, and `trainingrun watch` "
        "shows the progress",
    ),
    Remedy(
        "run-config-stop",
        r"RunConfig\(stop\)",
        "take it out, and end the loop in the training function, as session.stop() does",
    ),
    Remedy(
        "tune-callbacks",
        r"RunConfig\(callbacks: List",
        "pass subclasses of ray.train.UserCallback",
    ),
    Remedy(
        "fail-fast",
        r"FailureConfig\(fail_fast\)",
        "take it out: failures.maxRestarts: 0 of the TrainingRun ends it with the first error",
    ),
    Remedy(
        "checkpoint-frequency",
        r"`(checkpoint_frequency|checkpoint_at_end)` is deprecated",
        "take it out, and pass checkpoints to ray.train.report, or use a Session and "
        "checkpoints.everySteps of the TrainingRun",
    ),
    Remedy(
        "trainer-resources",
        r"ScalingConfig\(trainer_resources\)",
        "take it out: head.resources of the TrainingRun is what the trainer has",
    ),
    Remedy(
        "scaling-config",
        _keyword("ScalingConfig", r"_max_cpu_fraction_per_node|min_workers|max_workers"),
        "take it out: workers.count of the TrainingRun is the number of workers",
    ),
    Remedy(
        "transformers-trainer",
        _NAME.format(r"TransformersTrainer|HuggingFaceTrainer|TransformersCheckpoint")
        + "|"
        + _MODULE.format(r"train\.hf_transformers"),
        _TRANSFORMERS,
    ),
    Remedy(
        "accelerate-trainer",
        _NAME.format("AccelerateTrainer")
        + "|"
        + _MODULE.format(r"train\.(?:huggingface\.accelerate|hf_accelerate)"),
        "use TorchTrainer, with accelerate.Accelerator in its function",
    ),
    Remedy(
        "lightning-trainer",
        _NAME.format("LightningTrainer|LightningConfigBuilder|LightningCheckpoint"),
        _LIGHTNING,
    ),
    Remedy(
        "lightning-is-missing",
        r"PyTorch Lightning isn't installed",
        "put lightning into training.requirements, or use an image that has it; instead of "
        f"LightningTrainer {_LIGHTNING}",
    ),
    Remedy(
        "other-trainers",
        _MODULE.format(r"train\.(?:mosaic|rl|sklearn|gbdt_trainer)")
        + r"|`HorovodTrainer` is not supported|Horovod isn't installed",
        "use TorchTrainer with that library in its function, XGBoostTrainer or LightGBMTrainer, "
        "and RLlib for reinforcement learning: Ray Train has no such trainer any more",
    ),
    Remedy(
        "boosting-without-a-function",
        r"legacy (XGBoost|LightGBM)Trainer API",
        f"pass {_BOOSTING}",
    ),
    Remedy(
        "boosting-of-ray-util",
        r"ray\.util\.(xgboost|lightgbm) has been removed",
        "use XGBoostTrainer of ray.train.xgboost or LightGBMTrainer of ray.train.lightgbm with "
        f"{_BOOSTING}",
    ),
    Remedy(
        "predictor",
        _NAME.format(r"\w*Predictor") + "|" + _MODULE.format(r"train\.(?:batch_)?predictor"),
        _PREDICT,
    ),
    Remedy(
        "ray-sgd",
        r"Ray SGD has been deprecated|"
        + _NAME.format("Trainer|TrainingCallback|CheckpointStrategy")
        + "|"
        + _MODULE.format(r"train\.callbacks|util\.train"),
        "use ray.train.torch.TorchTrainer, and callbacks of ray.train.RunConfig",
    ),
    Remedy(
        "trainer-of-the-former-ray-train",
        "Detected use of a deprecated Trainer import",
        "import the trainer from its package, as TorchTrainer from ray.train.torch; TorchTrainer "
        "takes the function of a DataParallelTrainer too",
    ),
    Remedy(
        "air-callbacks",
        _MODULE.format(r"air\.callbacks"),
        "take it out: set tracking of the TrainingRun and call wandb or mlflow in the training "
        "function; for Keras use ReportCheckpointCallback of ray.train.tensorflow.keras",
    ),
    Remedy(
        "air-checkpoint",
        r"cannot import name 'Checkpoint' from 'ray\.air'|'ray\.air' has no attribute 'Checkpoint'|"
        + _MODULE.format(r"air\.checkpoint"),
        "import it from ray.train",
    ),
    Remedy(
        "dataset-config",
        _NAME.format("DatasetConfig"),
        "use ray.train.DataConfig, as dataset_config of the trainer",
    ),
    Remedy(
        "session-functions",
        r"module 'ray\.train\.session' has no attribute|'ray\.air' has no attribute 'report'|"
        + _FUNCTION.format(
            "session|(?:world_|local_|node_)?rank|(?:world_|local_|local_world_)?size|"
            "load_checkpoint|save_checkpoint"
        ),
        "use ray.train.report(metrics, checkpoint=…), ray.train.get_checkpoint() and "
        "ray.train.get_context(), which has get_world_rank(), get_world_size() and "
        "get_local_rank()",
    ),
    Remedy(
        "prepare-model",
        _FUNCTION.format("prepare_model|prepare_data_loader|get_device|enable_reproducibility"),
        "use prepare_model, prepare_data_loader, get_device and enable_reproducibility of "
        "ray.train.torch",
    ),
    Remedy(
        "mixed-precision",
        r"`accelerate`, `backward`, and `prepare_optimizer`|"
        + _FUNCTION.format("accelerate|backward|prepare_optimizer"),
        "take it out, and use torch.autocast and torch.amp.GradScaler",
    ),
    Remedy(
        "trial",
        r"`get_trial_\w+` is deprecated",
        "use $TRAININGRUN_NAME and $TRAININGRUN_ATTEMPT of the environment, or a folder of your "
        "own",
    ),
    Remedy(
        "tuner-of-a-trainer",
        r"Improper 'run' - not string nor trainable|Trainer' object has no attribute "
        r"'as_trainable'",
        "call fit() of the trainer itself, or move its function into a module for "
        "training.function and set spec.sweep: a Tuner takes no trainer any more",
    ),
    Remedy(
        "outside-of-training",
        r"cannot be used outside of a Ray Train training function",
        "call it in the function that the trainer gets as train_loop_per_worker",
    ),
    Remedy(
        "report-of-keywords",
        r"\breport\(\) (got an unexpected keyword argument|missing 1 required positional argument: "
        r"'metrics')",
        'pass a dictionary, as ray.train.report({"loss": loss})',
    ),
)
