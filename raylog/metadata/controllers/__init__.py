"""Where controllers live: the plan that says on which brokers, and the quorum's way there."""
