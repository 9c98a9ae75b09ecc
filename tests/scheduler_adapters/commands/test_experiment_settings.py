"""Settings that commands share: named policies, captions."""

from scheduler_adapters.commands.experiment_settings import Setup, load_named, policy_of
from scheduler_adapters.workload.requests import make_requests

PATIENT = {"patient": {"policy": "pars", "starve_after_s": 600}, "rad": {"max_started": 7}}
BURST = make_requests(prompt_tokens=[1, 1], output_tokens=[1, 1])


def test_a_made_up_name_makes_a_new_policy_of_its_settings():
    assert policy_of("patient", PATIENT) == "pars"
    assert policy_of("fcfs", PATIENT) == "fcfs"
    first, second = load_named("rad", PATIENT), load_named("rad", PATIENT)
    assert first is not second
    assert load_named("patient", PATIENT).name == load_named("pars-paper", {}).name


def test_a_caption_names_all_that_was_set():
    classes = {"paying": {"share": 0.25, "tbt_s": 0.1}, "free": {"share": 0.75}}
    setup = Setup(
        kv_blocks=4000, host_gb_per_s=50.0, classes=classes, scores="synthetic", seed=3, tau_b=0.6
    )
    assert setup.conditions("all at 0 s", 1200) == (
        "llama-3-8b@a100-80g, plain engine, 256 seats, 2048 tokens a step, 4,000 KV blocks, host "
        "link of 50 GB/s; log-normal mix, 1,200 requests, 25% paying (TBT <= 0.1 s), 75% free, "
        "all at 0 s; scores: synthetic (tau_b 0.6); seed 3"
    )


def test_arrivals_are_named_by_rate_or_trace():
    assert Setup().arrivals_text(None, BURST) == "all at 0 s"
    later = make_requests(prompt_tokens=[1], output_tokens=[1], arrival_s=[2.0])
    assert Setup().arrivals_text(None, later) == "at the trace's times"
    assert Setup().arrivals_text(4.0, BURST) == "Poisson arrivals at 4/s"
    bursts = Setup(cv=2.5, rate_per_s=4.0)
    assert bursts.arrivals_text(4.0, BURST) == "Gamma arrivals (CV 2.5) at 4/s"
