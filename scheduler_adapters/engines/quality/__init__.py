"""Quality of scores in an engine, and what follows from it. Imports no engine."""
