"""Of Ray's functions and arguments that there are no longer, or that work otherwise."""

from .remedy import Remedy


def _keyword(owner: str, names: str) -> str:
    """Of the error for an argument that there is no longer."""
    return rf"{owner}\.__init__\(\) got an unexpected keyword argument '({names})'"


_NAME = r"cannot import name '(?:{0})'|has no attribute '(?:{0})'"
_MODULE = r"[Nn]o module (?:named )?'ray\.(?:{0})'"
_TRANSFORMERS = (
    "use TorchTrainer, with transformers.Trainer in its function, and prepare_trainer and "
    "RayTrainReportCallback of ray.train.huggingface.transformers"
)
_FOLDER = (
    "a checkpoint is a folder: write files into one, pass Checkpoint.from_directory(folder) to "
    "ray.train.report, and read them below checkpoint.as_directory()"
)
_RESTORE = (
    "take it out: the run's newest checkpoint is ray.train.get_checkpoint() in the training "
    "function, and storage.restoreFrom of the TrainingRun begins from another run's"
)
_PREDICT = "use map_batches of a ray.data.Dataset with a class that loads the model"

REMOVED: tuple[Remedy, ...] = (
    Remedy(
        "checkpoint-of-a-dictionary",
        r"`(from_dict|from_bytes)\(\)`|'Checkpoint'( object)? has no attribute "
        r"'(to_dict|to_bytes|from_bytes|from_model|get_model|get_preprocessor|"
        r"get_internal_representation|uri)'",
        _FOLDER,
    ),
    Remedy("checkpoint-of-a-uri", r"`from_uri\(\)`", 'use ray.train.Checkpoint(path="s3://…")'),
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
        _NAME.format(r"TransformersTrainer|HuggingFaceTrainer|TransformersCheckpoint"),
        _TRANSFORMERS,
    ),
    Remedy(
        "accelerate-trainer",
        _NAME.format("AccelerateTrainer") + "|" + _MODULE.format(r"train\.huggingface\.accelerate"),
        "use TorchTrainer, with accelerate.Accelerator in its function",
    ),
    Remedy(
        "lightning-trainer",
        _NAME.format("LightningTrainer|LightningConfigBuilder|LightningCheckpoint"),
        "use TorchTrainer, with Lightning's Trainer in its function, and RayDDPStrategy, "
        "RayLightningEnvironment and prepare_trainer of ray.train.lightning",
    ),
    Remedy(
        "other-trainers",
        _MODULE.format(r"train\.(?:mosaic|rl|sklearn|gbdt_trainer)")
        + r"|`HorovodTrainer` is not supported",
        "Ray Train has no such trainer any more: use TorchTrainer with that library in its "
        "function, XGBoostTrainer or LightGBMTrainer, and RLlib for reinforcement learning",
    ),
    Remedy(
        "boosting-without-a-function",
        r"legacy (XGBoost|LightGBM)Trainer API",
        "pass a training function that calls the library's train() with RayTrainReportCallback",
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
        + _MODULE.format(r"train\.callbacks"),
        "use ray.train.torch.TorchTrainer, and callbacks of ray.train.RunConfig",
    ),
    Remedy(
        "air-checkpoint",
        r"cannot import name 'Checkpoint' from 'ray\.air'|" + _MODULE.format(r"air\.checkpoint"),
        "import it from ray.train",
    ),
    Remedy(
        "dataset-config",
        _NAME.format("DatasetConfig"),
        "use ray.train.DataConfig, as dataset_config of the trainer",
    ),
    Remedy(
        "session-functions",
        r"module 'ray\.train\.session' has no attribute|module 'ray\.train' has no attribute "
        r"'(session|world_rank|local_rank|world_size|load_checkpoint|save_checkpoint)'",
        "use ray.train.report(metrics, checkpoint=…), ray.train.get_checkpoint() and "
        "ray.train.get_context().get_world_rank()",
    ),
    Remedy(
        "prepare-model",
        r"module 'ray\.train' has no attribute 'prepare_(model|data_loader)'",
        "use prepare_model and prepare_data_loader of ray.train.torch",
    ),
    Remedy(
        "mixed-precision",
        r"`accelerate`, `backward`, and `prepare_optimizer`",
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
        r"Improper 'run' - not string nor trainable",
        "a Tuner takes no trainer any more: call fit() of the trainer itself",
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
