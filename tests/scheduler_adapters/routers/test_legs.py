import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.routers.legs import BrokenLeg, Emitted, Leg

THINK_END, END = 8, 2


def leg(kind="arrival", tokens=(1, 2, 3), prompt_tokens=3, **more):
    settings = {"is_thinking": True, "max_tokens": 9, "arrival_s": 1.0, "think_end": THINK_END}
    settings |= {"kind": kind, "token_ids": tokens, "prompt_tokens": prompt_tokens} | more
    return Leg(request_id="a", stop_token_ids=(END,), **settings)


@given(st.data())
def test_any_cuts_into_legs_give_the_tokens_of_one_leg(data):
    whole = [*range(100, 100 + data.draw(st.integers(0, 9))), THINK_END, 7, 9, END]
    one = leg(max_tokens=20, tokens=[1, 2, 3])
    while not one.finish:
        later = one.leg("resumed")
        assert later.max_tokens == 20 - later.generated_tokens
        rest = whole[later.generated_tokens :]
        one.accept(Emitted(len(later.token_ids), rest[: data.draw(st.integers(1, len(rest)))]))
    assert (one.token_ids[3:], one.finish) == (whole, "stop")
    assert one.thinking_tokens == whole.index(THINK_END) + 1


@pytest.mark.parametrize("position", [2, 4])
def test_a_lost_or_doubled_token_breaks_the_leg(position):
    with pytest.raises(BrokenLeg, match=f"tokens from {position} after 3"):
        leg(tokens=[1, 2, 3]).accept(Emitted(position, [7]))
