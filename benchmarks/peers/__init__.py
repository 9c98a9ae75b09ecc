"""Other systems beside ours, each a script: Vidur, MLServer, Ray, Envoy, vLLM and its own tests."""
