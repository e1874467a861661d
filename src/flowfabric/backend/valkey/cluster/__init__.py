"""A store on a Valkey cluster: what differs from a store on one server."""
