"""The words of each gateway and server: paths of our columns, rows rewritten, lines of vLLM."""
