"""What keeps the driver and its workers in step: coordinator, lease, step consensus, notices."""
