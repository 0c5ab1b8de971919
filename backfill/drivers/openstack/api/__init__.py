"""The cloud's API: requests, typed errors, states, and one shared picture of all servers."""
