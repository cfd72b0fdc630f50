"""What was observed, sorted: what is this run's own, and of which attempt."""

from dataclasses import dataclass
from datetime import datetime

from ..api.contract import Progress
from ..api.v1alpha1 import TrainingRun
from ..rendering import names
from ..rendering.settings import RenderSettings
from . import pods
from .model import Manifest, Observed, Ref
from .settings import ReconcileSettings

RAY_API = "ray.io/v1"


@dataclass(frozen=True, slots=True)
class Scene:
    """One look at one run."""

    observed: Observed
    render: RenderSettings
    settings: ReconcileSettings
    now: datetime

    @property
    def run(self) -> TrainingRun:
        """The run, with the status that was last written."""
        return self.observed.run

    def own_jobs(self) -> dict[int, Manifest]:
        """The RayJobs that this very run owns, by attempt."""
        uid = self.run.metadata.uid
        found = {}
        for job in self.observed.ray_jobs:
            owners = job["metadata"].get("ownerReferences") or ()
            number = self._number(job)
            if number is not None and any(owner.get("uid") == uid for owner in owners):
                found[number] = job
        return found

    def stranger(self, number: int) -> Manifest | None:
        """A RayJob under the name of that attempt which this run does not own."""
        wanted = names.ray_job_name(self.run, number)
        own = self.own_jobs().get(number)
        for job in self.observed.ray_jobs:
            if job is not own and pods.name(job) == wanted:
                return job
        return None

    def job(self, number: int) -> Manifest | None:
        """The RayJob of that attempt."""
        return self.own_jobs().get(number)

    def pods(self, number: int | None = None) -> list[Manifest]:
        """The run's own pods; of one attempt where a number is given."""
        return self._own(self.observed.pods, number)

    def clusters(self, number: int | None = None) -> list[Manifest]:
        """The run's own RayClusters; of one attempt where a number is given."""
        return self._own(self.observed.ray_clusters, number)

    def head(self, number: int) -> Manifest | None:
        """The attempt's head pod; the newest where an old one is still leaving."""
        heads = [pod for pod in self.pods(number) if pods.is_head(pod)]
        return max(
            heads,
            key=lambda pod: (not pods.leaving(pod), pod["metadata"].get("creationTimestamp") or ""),
            default=None,
        )

    def word(self, number: int) -> Progress | None:
        """The runtime's last document, if that attempt's driver wrote it."""
        found = self.observed.progress
        return found if found and found.attempt == number else None

    def taken_back(self, number: int) -> bool:
        """Whether a queue keeps the attempt waiting, or has taken its capacity back."""
        job = self.job(number) or {}
        return bool((job.get("spec") or {}).get("suspend"))

    def live_word(self, number: int) -> Progress | None:
        """The document, if the head pod that is there now has written it.

        After a loss of the head, the former driver's last document still says "Training".
        """
        word, head, age = self.word(number), self.head(number), self.observed.progress_age_s
        if word is None or head is None or not pods.running(head):
            return None
        born = pods.created(head)
        if age is not None and born is not None and age > (self.now - born).total_seconds():
            return None
        return word

    def newest_number(self) -> int:
        """The highest attempt of which anything is left in the cluster; 0: none."""
        left = [*self.own_jobs()]
        left += [number for item in self.clusters() if (number := self._number(item))]
        left += [number for item in self.pods() if (number := self._number(item))]
        return max(left, default=0)

    def job_ref(self, job: Manifest) -> Ref:
        """The very RayJob."""
        return pods.ref(job, RAY_API, "RayJob")

    def _own(self, items: tuple[Manifest, ...], number: int | None) -> list[Manifest]:
        uid = self.run.metadata.uid
        return [
            item
            for item in items
            if item["metadata"].get("labels", {}).get(names.RUN_UID_LABEL) == uid
            and (number is None or self._number(item) == number)
        ]

    def _number(self, item: Manifest) -> int | None:
        text = item["metadata"].get("labels", {}).get(names.ATTEMPT_LABEL, "")
        return int(text) if text.isdecimal() else None
