"""The virtual token counter: clients have equal shares, in order of arrival or of a policy."""

from typing import Any

from scheduler_adapters.policies.fair_shares import FairShares


def token_counter(*, inside: str = "fcfs", **settings: Any) -> FairShares:
    """Return equal shares of clients, each client's requests in the order of the policy `inside`.

    `settings` are those of `FairShares` (weights) and of that policy. With `inside` pars or srpt
    the order of a client is a learned one.

    Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, whose order inside
    a client is FCFS. `FairShares` says where it differs.
    """
    shares = FairShares(inside, **settings)
    shares.name = "virtual-token-counter" + ("" if inside == "fcfs" else f"+{inside}")
    return shares
