"""Why a run does not move, in one sentence with what to do about it."""
