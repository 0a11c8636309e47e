"""The demo: a closed fictional world, a tiny policy and its cold start, all made on the spot."""
