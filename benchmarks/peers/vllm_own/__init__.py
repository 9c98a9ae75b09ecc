"""The tests of vLLM under our schedulers; `differences.md` has the reasons of each difference."""
