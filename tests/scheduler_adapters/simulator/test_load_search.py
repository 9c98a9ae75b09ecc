"""The search for the highest load: bisection, its ends, and whole numbers."""

from hypothesis import given, strategies as st

from scheduler_adapters.simulator.load_search import highest_load


@given(st.floats(0.06, 900))
def test_bisection_finds_the_edge_however_far_it_is(edge):
    found = highest_load(lambda rate: rate <= edge, low=0.05, high=1.0, tolerance=0.01, grows=True)
    assert edge * 0.985 <= found <= edge


def test_the_ends_of_the_range_are_answers_too():
    assert highest_load(lambda rate: False, low=1, high=2, tolerance=0.1) == 0.0
    assert highest_load(lambda rate: True, low=1, high=2, tolerance=0.1) == 2


@given(edge=st.integers(1, 500), most=st.integers(2, 500))
def test_a_search_over_whole_numbers_ends_at_the_last_good_one(edge, most):
    tried = []

    def meets(count):
        tried.append(count)
        return count <= edge

    found = highest_load(meets, low=1, high=2, tolerance=1e-9, grows=True, most=most, whole=True)
    assert found == min(edge, most)
    assert all(isinstance(count, int) and count <= most for count in tried)
