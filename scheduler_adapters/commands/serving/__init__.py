"""Commands that place requests on many engines; one file per command."""
