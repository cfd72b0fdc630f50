"""What can go wrong on the test cluster. Each fault is a context manager: it is there while its
block runs, and undone when that is left, whatever happened inside.

What needs something that this cluster has not, such as Kueue or several zones, is not here.
"""

from dataclasses import dataclass
from typing import Any

from . import bucket, control_plane, controllers, nodes, pods, processes, run_objects
from .acting import Act
from .plan import PHASE_S, Phase, Scenario


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    name: str
    act: Act
    budget_s: float
    """Seconds without training that it may cost a run that trains: two to three times what it
    costs on two cores, `lasts_s` included where training cannot go on meanwhile."""
    lasts_s: float = 0.0
    """How long it is there; 0: it is over at once."""
    phases: tuple[Phase, ...] = (Phase.TRAINING,)
    needs_spot: bool = False
    """It happens to the spot node, on which a worker has to be."""
    restarts: int = 0
    """Of the application that it may use up: what it does looks like an error of the code."""
    keeps_pods: bool = False
    """While the run trains it ends no pod, begins no container anew and ends no attempt: not what
    happens by it, and not what the operator, KubeRay or Ray make of it."""
    ends_run: bool = False
    """It is the run's end; nothing is left of it."""


PROCESS_S, POD_S, NODE_S, RAYLET_S, HEAD_S, ATTEMPT_S = 45.0, 60.0, 120.0, 180.0, 150.0, 240.0
"""Budgets by what has to begin again: a process, a pod, a node's pods where the node has to be
noticed, a raylet whose container goes on, the head, the whole attempt."""
UNNOTICED_S = 30.0
"""Budget of what stops no training; the longest pause on a machine that is busy otherwise."""


def _unnoticed(name: str, act: Act, pauses_s: float = 0.0, **more: Any) -> Fault:
    """What stops no training, but for the seconds in which it pauses it, and ends no pod."""
    return Fault(name, act, UNNOTICED_S + pauses_s, keeps_pods=True, **more)


STARTING, TRAINING, RECOVERING = Phase.STARTING, Phase.TRAINING, Phase.RECOVERING
SUSPENDING, RESUMING, ENDING = Phase.SUSPENDING, Phase.RESUMING, Phase.ENDING
EVERY = tuple(Phase)

FAULTS = (
    Fault("rank 0 killed", processes.trainer_killed, PROCESS_S, phases=(TRAINING, ENDING)),
    Fault("the other rank killed", processes.other_rank_killed, PROCESS_S),
    Fault("both ranks killed", processes.both_ranks_killed, PROCESS_S),
    Fault("rank 0 stopped", processes.trainer_stopped, 120.0),
    _unnoticed("rank 0 paused", processes.trainer_paused, pauses_s=8, lasts_s=8),
    Fault("raylet killed", processes.raylet_killed, RAYLET_S),
    Fault("Ray's agent killed", processes.agent_killed, RAYLET_S),
    Fault("Ray's control store killed", processes.gcs_killed, HEAD_S),
    Fault("driver killed", processes.driver_killed, ATTEMPT_S, restarts=1),
    _unnoticed("driver paused", processes.driver_paused, pauses_s=15, lasts_s=15),
    Fault("worker out of memory", processes.worker_out_of_memory, RAYLET_S, restarts=1),
    Fault("shared memory full", processes.shared_memory_full, RAYLET_S, lasts_s=15),
    Fault("worker container killed", pods.worker_container_killed, POD_S,
          phases=(TRAINING, ENDING)),
    Fault("head container killed", pods.head_container_killed, HEAD_S),
    Fault("worker deleted", pods.worker_deleted, POD_S, phases=EVERY),
    Fault("worker force-deleted", pods.worker_force_deleted, POD_S, phases=(TRAINING, RECOVERING)),
    Fault("both workers deleted", pods.both_workers_deleted, POD_S, phases=(TRAINING, RECOVERING)),
    Fault("both workers force-deleted", pods.both_workers_force_deleted, POD_S),
    Fault("head deleted", pods.head_deleted, HEAD_S, phases=(TRAINING, RECOVERING)),
    Fault("head force-deleted", pods.head_force_deleted, HEAD_S, phases=EVERY),
    Fault("head and worker deleted", pods.head_and_worker_deleted, HEAD_S),
    Fault("every pod deleted", pods.every_pod_deleted, ATTEMPT_S, phases=(TRAINING, RECOVERING)),
    Fault("worker evicted", pods.worker_evicted, POD_S),
    Fault("head evicted", pods.head_evicted, HEAD_S),
    Fault("RayCluster deleted", run_objects.ray_cluster_deleted, ATTEMPT_S),
    Fault("RayJob deleted", run_objects.ray_job_deleted, ATTEMPT_S, phases=(TRAINING, RECOVERING)),
    _unnoticed("token's Secret deleted", run_objects.token_deleted),
    _unnoticed("NetworkPolicy deleted", run_objects.network_policy_deleted),
    _unnoticed("spec edited", run_objects.spec_edited, phases=EVERY),
    Fault("suspended for a moment", run_objects.suspended_for_a_moment, ATTEMPT_S, lasts_s=2,
          phases=(STARTING, TRAINING, RECOVERING)),
    Fault("run deleted", run_objects.run_deleted, 90.0, ends_run=True, phases=EVERY),
    Fault("spot node killed", nodes.spot_node_killed, NODE_S, lasts_s=45, needs_spot=True,
          phases=(TRAINING, ENDING)),
    Fault("spot node off and on", nodes.spot_node_killed, NODE_S, lasts_s=3, needs_spot=True),
    Fault("spot node paused", nodes.spot_node_paused, NODE_S, lasts_s=60, needs_spot=True),
    Fault("spot node paused for a moment", nodes.spot_node_paused, NODE_S, lasts_s=5,
          needs_spot=True),
    Fault("spot node cut off", nodes.spot_node_cut_off, NODE_S, lasts_s=60, needs_spot=True),
    Fault("spot node cut off for a moment", nodes.spot_node_cut_off, NODE_S, lasts_s=5,
          needs_spot=True),
    _unnoticed("spot node without API server", nodes.spot_node_without_api_server, lasts_s=25,
               needs_spot=True),
    Fault("workers cut off for a moment", nodes.workers_cut_off, NODE_S, lasts_s=8,
          needs_spot=True),
    Fault("spot node drained", nodes.spot_node_drained, POD_S, needs_spot=True,
          phases=(TRAINING, ENDING)),
    _unnoticed("spot node drained against a budget", nodes.spot_node_drained_against_a_budget,
               needs_spot=True),
    Fault("spot node tainted NoExecute", nodes.spot_node_tainted, POD_S, lasts_s=5,
          needs_spot=True),
    Fault("spot node cordoned, worker deleted", nodes.spot_node_cordoned_and_worker_deleted, POD_S,
          lasts_s=20, needs_spot=True),
    _unnoticed("kubelet stopped", nodes.kubelet_stopped, lasts_s=30, needs_spot=True),
    _unnoticed("kubelet restarted", nodes.kubelet_restarted, needs_spot=True),
    _unnoticed("containerd restarted", nodes.containerd_restarted, needs_spot=True),
    Fault("preempted by the scheduler", nodes.outranked_by_a_pod, POD_S + 40, lasts_s=20,
          needs_spot=True),
    Fault("quota used up, worker deleted", nodes.quota_used_up_and_worker_deleted, POD_S + 40,
          lasts_s=20),
    _unnoticed("operator deleted", controllers.operator_deleted, phases=EVERY),
    _unnoticed("operator killed", controllers.operator_killed, phases=(TRAINING, RECOVERING)),
    _unnoticed("operator away", controllers.operator_away, lasts_s=20),
    Fault("operator away, worker deleted", controllers.operator_away_and_worker_deleted, POD_S + 20,
          lasts_s=20),
    Fault("operator away, head force-deleted", controllers.operator_away_and_head_deleted,
          HEAD_S + 20,
          lasts_s=20),
    _unnoticed("KubeRay deleted", controllers.kuberay_deleted,
               phases=(STARTING, TRAINING, RECOVERING)),
    Fault("KubeRay away, worker deleted", controllers.kuberay_away_and_worker_deleted, POD_S + 60,
          lasts_s=30),
    _unnoticed("operator without permissions", controllers.permissions_away, lasts_s=25),
    Fault("operator without permissions, worker deleted",
          controllers.permissions_away_and_worker_deleted,
          POD_S + 25, lasts_s=25),
    _unnoticed("pods and RayJobs unreadable", controllers.pods_and_jobs_unreadable, lasts_s=25),
    _unnoticed("API server paused", control_plane.api_server_paused, lasts_s=20),
    Fault("API server paused, rank 0 killed", control_plane.api_server_paused_and_trainer_killed,
          PROCESS_S + 20,
          lasts_s=20),
    _unnoticed("API server killed", control_plane.api_server_killed, phases=(TRAINING, RECOVERING)),
    _unnoticed("etcd compacted", control_plane.etcd_compacted),
    _unnoticed("etcd paused", control_plane.etcd_paused, lasts_s=10),
    Fault("scheduler paused, worker deleted", control_plane.scheduler_paused_and_worker_deleted,
          POD_S + 40,
          lasts_s=20),
    _unnoticed("controllers paused", control_plane.controllers_paused, lasts_s=20),
    _unnoticed("operator throttled", control_plane.operator_throttled, lasts_s=20,
               phases=(TRAINING, RECOVERING)),
    _unnoticed("DNS away", control_plane.dns_away, lasts_s=20),
    Fault("DNS away, rank 0 killed", control_plane.dns_away_and_trainer_killed, PROCESS_S + 60,
          lasts_s=20),
    Fault("credentials away, worker deleted", control_plane.credentials_away_and_worker_deleted,
          POD_S + 60,
          lasts_s=20),
    _unnoticed("bucket away", bucket.storage_away, lasts_s=25, phases=(STARTING, TRAINING, ENDING)),
    Fault("bucket away, rank 0 killed", bucket.storage_away_and_trainer_killed, PROCESS_S + 70,
          lasts_s=25),
    Fault("bucket away, worker deleted", bucket.storage_away_and_worker_deleted, POD_S + 70,
          lasts_s=25),
    _unnoticed("bucket's gateway killed", bucket.storage_restarted, pauses_s=15),
    _unnoticed("bucket hangs", bucket.storage_paused, lasts_s=20, phases=(TRAINING, RECOVERING)),
    _unnoticed("bucket answers 503", bucket.storage_answers("503"), lasts_s=20,
               phases=(TRAINING, ENDING)),
    _unnoticed("bucket answers 429", bucket.storage_answers("429"), lasts_s=20),
    _unnoticed("bucket throttles", bucket.storage_answers("throttled"), lasts_s=25),
    _unnoticed("bucket answers 409", bucket.storage_answers("conflicts"), lasts_s=20),
    _unnoticed("bucket forgets checkpoints", bucket.storage_answers("forgetful"), lasts_s=20,
               phases=(TRAINING,)),
    _unnoticed("bucket refuses writes", bucket.storage_answers("read-only"), lasts_s=20),
    _unnoticed("bucket is slow", bucket.storage_answers("slow"), lasts_s=30),
    _unnoticed("bucket accepts and hangs", bucket.storage_answers("hanging"), lasts_s=20),
)  # fmt: skip


def scenarios() -> dict[str, tuple[Scenario, Fault]]:
    """Every scenario and its fault, by the scenario's name."""
    found = {}
    for fault in FAULTS:
        for phase in fault.phases:
            scenario = Scenario(
                fault.name, phase, fault.lasts_s, fault.budget_s + PHASE_S[phase], fault.ends_run
            )
            assert scenario.name not in found, f"two scenarios are called {scenario.name}"
            found[scenario.name] = (scenario, fault)
    return found
