"""Other task queues beside FlowFabric's worker, on the same Valkey server in the same sitting."""
