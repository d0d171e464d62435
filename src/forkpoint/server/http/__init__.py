"""HTTP: connections, the door that every request goes through, keys, tenants, logs, metrics, its document."""
