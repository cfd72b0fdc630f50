"""The status: conditions and phase, what the driver reports, where the time went."""
