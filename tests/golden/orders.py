"""Orders: shuffles, mixtures, batch sizes, hosts, states."""
