"""Commands that train many rankers for a table: `reproduce` and `cross-model`."""
