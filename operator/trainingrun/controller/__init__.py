"""The operator's process: events -> queue -> reconcile -> act.

`python -m trainingrun.controller` starts it.
"""
