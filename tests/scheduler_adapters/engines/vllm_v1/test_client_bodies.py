"""Bodies of requests: prompts are found, and hints whatever they are spelled like."""

import json

import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.engines.vllm_v1 import client_bodies
from scheduler_adapters.engines.vllm_v1.client_bodies import GENERATE, SCORED, UNSCORED

NO_GENERATION = {
    "/tokenize",
    "/detokenize",
    "/ping",
    "/v1/messages/count_tokens",
    "/v1/responses/{response_id}/cancel",
    "/inference/v1/abort_requests",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
}


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_every_endpoint_of_vllm_that_generates_is_known():
    from fastapi.routing import APIRoute, APIWebSocketRoute
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = make_arg_parser(FlexibleArgumentParser()).parse_args(["--enable-scale-out"])
    app = build_app(options, ("generate", "transcription", "realtime"))
    routes = {
        route.path
        for route in app.routes
        if isinstance(route, APIWebSocketRoute)
        or (isinstance(route, APIRoute) and "POST" in (route.methods or ()))
    }
    unknown = {path for path in routes if not path.endswith("render")} - NO_GENERATION
    # Cohere's has routes where its package is installed.
    assert unknown == (SCORED.keys() | UNSCORED) - {"/cohere/v2/chat"}


PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "what is this?"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]},
    {"role": "user", "content": [{"type": "tool_result", "content": "42"}]},
]


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/v1/completions", {"prompt": "hi, " * 9999}, f"{'hi, ' * 2048} {'hi, ' * 2048}"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "hi"),
        ("/v1/responses", {"input": "hi"}, "hi"),
        ("/v1/responses", {"input": [{"role": "user", "content": "hi"}]}, "hi"),
        *(("/v1/responses", {"input": given}, None) for given in (None, 5, [], ["text"])),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}, "hi"),
        ("/v1/messages", {"messages": PARTS}, "what is this?\n\n42"),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "a"}]]}, "a"),
        ("/v1/chat/completions/batch", {"messages": []}, None),
        ("/v1/chat/completions/batch", {"messages": [{"role": "user", "content": "a"}]}, None),
        ("/v1/chat/completions/batch", {"messages": "a"}, None),
        ("/invocations", {"messages": [{"role": "user", "content": "a"}], "prompt": "b"}, "a"),
        ("/invocations", {"prompt": "b"}, "b"),
        (GENERATE, {"token_ids": [1], "sampling_params": {}}, None),
    ],
)
def test_the_prompt_of_a_body(path, body, prompt):
    prompts_of, required = SCORED[path]
    parsed = client_bodies.parse(json.dumps(body).encode(), required)
    assert parsed == body
    assert prompts_of(parsed) == (() if prompt is None else (prompt,))


@pytest.mark.parametrize("sent", [{"sampling_params": 5}, {"sampling_params": {"extra_args": []}}])
def test_what_vllm_refuses_is_no_body(sent):
    assert client_bodies.parse(json.dumps(sent).encode(), SCORED[GENERATE][1]) is None


@pytest.mark.parametrize("name", ["lengthwise_limits", "lengthwise_request_key"])
def test_what_only_we_set_is_dropped_from_trusted_clients_too(name):
    body = {"vllm_xargs": {name: [0, 1]}, "sampling_params": {"extra_args": {name: 1}}}
    body["request_id"] = "a-lengthwise_0123456789abcdef__"
    assert client_bodies.drop(body, ())
    assert body == {"vllm_xargs": {}, "sampling_params": {"extra_args": {}}}


spellings = st.sampled_from(["lengthwise_score", "ec_transfer_params", "priority"]).flatmap(
    lambda word: st.tuples(
        *(st.sampled_from([c, f"\\u{ord(c):04x}", f"\\u{ord(c):04X}"]) for c in word)
    )
)


@given(spellings)
def test_no_spelling_of_a_hint_is_overlooked(spelled):
    text = '{"vllm_xargs": {"' + "".join(spelled) + '": 1}}'
    ((name, _),) = json.loads(text)["vllm_xargs"].items()
    for encoding in ("utf-8", "utf-16"):
        body = client_bodies.parse(text.encode(encoding))
        assert body is not None
        assert client_bodies.drop(body, [name])
    if name != "priority":
        assert client_bodies.form_may_hold_hints(b"", text.encode())


@given(spellings, st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_a_body_that_is_not_parsed_holds_no_hint_and_no_priority(spelled, is_top, encoding):
    member = '"' + "".join(spelled) + '": 1'
    text = '{"prompt": "a", ' + (member if is_top else '"x": {"y": {' + member + "}}") + "}"
    assert not client_bodies.is_plain(text.encode(encoding), "/v1/completions", ())


@given(st.sampled_from(["", " \n", "\ufeff"]), st.booleans(), st.booleans())
def test_hints_stand_before_a_body_or_beside_its_own(start, has_carrier, is_changed):
    body = {"prompt": "ü\u2028", "n": 1.50} | ({"vllm_xargs": {"a": 1}} if has_carrier else {})
    content, added = (start + json.dumps(body)).encode(), {"lengthwise_score": 0.1}
    made = client_bodies.attached(
        content, {**body}, added, "/v1/completions", is_changed=is_changed
    )
    whole = body | {"vllm_xargs": {**body.get("vllm_xargs", {}), **added}}  # type: ignore[dict-item]
    assert json.loads(made.decode("utf-8-sig")) == whole
    is_spliced = not has_carrier and not is_changed and start != "\ufeff"
    assert made.endswith(content.strip()[1:]) == is_spliced
