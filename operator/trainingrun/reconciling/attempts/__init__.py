"""How attempts begin and end, when another one follows, and the run's own clock."""
