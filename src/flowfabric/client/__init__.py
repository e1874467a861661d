"""FlowFabric over HTTP: the two ports of a program, spoken to a server instead of a store."""
