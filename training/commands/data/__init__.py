"""Commands that make data sets: from public sources, and from an endpoint's answers."""
