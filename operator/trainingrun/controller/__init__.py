"""The operator's process: events -> queue -> reconcile -> act. `python -m trainingrun.controller`.

What it may do in the cluster is listed, as data, in `trainingrun.cluster.resources`.
"""
