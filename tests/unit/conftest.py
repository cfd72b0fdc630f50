"""Fixtures that several unit tests share."""

import pytest

from support.reconciled import a_training_run
from trainingrun.reconciling import Observed


@pytest.fixture
def training() -> Observed:
    """An attempt whose pods were all seen to be well, and whose head was not heard yet."""
    return a_training_run()
