"""A sweep: Ray Tune trains the run's function several times, with other values each time."""
