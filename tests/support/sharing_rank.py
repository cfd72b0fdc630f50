"""`python sharing_rank.py URI ENDPOINT`: a rank that downloads the newest checkpoint, without Ray.

It prints what it offers to the other ranks of its machine, and after each line of its input the
SHA-256 of its own `state.pt`.
"""

import hashlib
import json
import sys

from trainingrun_runtime.checkpoints import manifest
from trainingrun_runtime.checkpoints.bucket import Bucket
from trainingrun_runtime.checkpoints.fetching import Fetched, share_of


def main() -> None:
    bucket = Bucket.open(sys.argv[1], sys.argv[2], "us-east-1")
    newest = manifest.committed(bucket)[-1]
    fetched = Fetched(bucket, newest, ranks=2)
    share = share_of(newest.files, rank=0, world_size=2, former=2)
    assert fetched.fetch(share) is None
    print(json.dumps(fetched.offered(share.common)), flush=True)
    for _ in sys.stdin:
        content = (fetched.folder / "state.pt").read_bytes()
        print(hashlib.sha256(content).hexdigest(), flush=True)
    fetched.close()


if __name__ == "__main__":
    main()
