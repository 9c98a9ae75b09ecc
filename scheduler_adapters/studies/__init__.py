"""Commands that run many simulations for one table: `rivals`."""
