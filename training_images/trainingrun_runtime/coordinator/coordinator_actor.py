"""The coordinator as an actor of Ray: how it is started and found."""

from typing import Any

import ray

from trainingrun_protocol.contract import ContractTrial, RunContract

from .coordinator import Coordinator


def trial_coordinator(trial: ContractTrial) -> str:
    """Name of the coordinator's actor of a trial of a sweep; the former leg's may still end."""
    return f"trial-{trial.number:04d}-{trial.leg:02d}-coordinator"


def start_coordinator(contract: RunContract, *arguments: Any) -> Any:
    """Start the coordinator as an actor on the driver's node; returns its handle."""
    name = trial_coordinator(contract.trial) if contract.trial else None
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(Coordinator)
        .options(name=name, num_cpus=0, max_concurrency=16, label_selector={"ray.io/node-id": here})
        .remote(contract, *arguments)
    )
