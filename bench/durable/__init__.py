"""Durable programs beside other engines: the same workloads, one machine, one sitting."""
