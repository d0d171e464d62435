"""The operations of the store: functions of their inputs, run inside a transaction. None knows of threads or loops."""
