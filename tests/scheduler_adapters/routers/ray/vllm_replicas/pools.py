"""A placement that moves each request as often as it can, between two replicas."""

from scheduler_adapters.placements.distserve import DistServe


class Restless(DistServe):
    """DistServe, and a move to the other instance at the end of thinking."""

    name = "restless"

    def at_phase_change(self, request, instance, instances):
        return next(one.instance_id for one in instances if one.instance_id != instance)
