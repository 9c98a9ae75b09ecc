"""The wire format: `scoring.proto` and its generated stubs, which a test compares and writes."""
