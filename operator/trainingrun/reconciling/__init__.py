"""Pure: (what was observed, settings, now) -> Plan. One file per policy."""
