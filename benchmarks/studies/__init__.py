"""Many rankers or simulations for one table: `rivals`, `objectives`, `frames`, `ranker_cost`."""
