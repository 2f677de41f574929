"""A service that answers requests of other programs for a surrogate, by the protocol UM-Bridge 1.0. Needs aiohttp."""
