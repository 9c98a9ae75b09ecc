"""Sequences of messages as gateways of the Gateway API send them, replayed.

They follow kubernetes-sigs/gateway-api-inference-extension at 84436a9: the Endpoint Picker Protocol
(docs/proposals/004-endpoint-picker-protocol), the sequence of pkg/lwepp/handlers/server_test.go,
and what conformance/tests/gateway_following_epp_routing*.go, gateway_destination_endpoint_served.go
and epp_unavailable_fail_open.go let a gateway send.
"""

import asyncio

import pytest
from google.protobuf.json_format import MessageToDict

from scheduler_adapters.routers.endpoint_picker import ext_proc_pb2 as pb
from scheduler_adapters.routers.endpoint_picker.ext_proc import ENDPOINT, ExternalProcessor
from tests.scheduler_adapters.routers.endpoint_picker.test_picker import NAMES, make_picker

BODY = b'{"model": "conformance-fake-model", "prompt": "Write as if you were a critic: SF"}'
DUPLEX = dict.fromkeys(("request_body_mode", "response_body_mode"), "FULL_DUPLEX_STREAMED")


def message(kind, *, config=None, subset=None, **fields):
    made = pb.ProcessingRequest(**{kind: fields}, protocol_config=config)
    if subset is not None:
        hint = made.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({f"{ENDPOINT}-subset": subset})
    return made


HEADERS, END = message("request_headers"), message("request_body", body=BODY, end_of_stream=True)


def replay(*messages, picker=None):
    """Kinds and contents of the answers to one request, and its choices before the stream ended."""
    picker = picker or make_picker("round-robin")
    processor, chosen, before = ExternalProcessor(picker), [], picker.num_open

    async def run():
        async def sent():
            for one in messages:
                yield one
            chosen.extend(one for there in picker.open.values() for one in there.values())

        return [answer async for answer in processor.process(sent(), None)]

    answers = asyncio.run(run())
    assert (picker.num_open, processor.held_bytes) == (before, 0)
    return [(one.WhichOneof("response"), content(one)) for one in answers], chosen


def content(answer):
    """Endpoints, a streamed part, a status, or None for a message that is passed."""
    inner = getattr(answer, answer.WhichOneof("response"))
    if answer.HasField("immediate_response"):
        return inner.status.code
    if not inner.ByteSize():
        return None
    if inner.response.HasField("body_mutation"):
        part = inner.response.body_mutation.streamed_response
        return part.body, part.end_of_stream
    (option,) = inner.response.header_mutation.set_headers
    # A client's own header is overwritten. Header and metadata must be the same.
    assert (option.header.key, option.append_action) == (ENDPOINT, pb.OVERWRITE_IF_EXISTS_OR_ADD)
    value = option.header.raw_value.decode()
    assert MessageToDict(answer.dynamic_metadata) == {"envoy.lb": {ENDPOINT: value}}
    return value.split(",")


def test_headers_are_answered_when_the_body_has_ended():
    answers, chosen = replay(HEADERS, END)
    assert answers == [("request_headers", NAMES), ("request_body", (BODY, True))]
    assert chosen[0].routed.replica == NAMES[0]
    answers, _ = replay(message("request_headers", end_of_stream=True))
    assert answers == [("request_headers", NAMES)]


def test_parts_of_a_body_stay_in_order_and_answers_are_streamed():
    parts = [BODY[:30], BODY[30:], b"data: 1\n\n", b"data: 2\n\n"]
    kinds = ["request_body", "request_body", "response_body", "response_body"]
    streamed = [message(kind, body=part) for kind, part in zip(kinds, parts, strict=True)]
    passed = [message(f"{kind}_trailers") for kind in ("request", "response")]
    start, answer = message("request_headers", config=DUPLEX), message("response_headers")
    answers, _ = replay(start, *streamed[:2], passed[0], answer, *streamed[2:], passed[1])
    middle = [(kind, (part, False)) for kind, part in zip(kinds, parts, strict=True)]
    assert answers == [
        *[("request_headers", NAMES), *middle[:2], ("request_trailers", None)],
        *[("response_headers", None), *middle[2:], ("response_trailers", None)],
    ]


@pytest.mark.parametrize("subset", [[NAMES[2]], f"10.9.9.9:80, {NAMES[2]}", ["10.0.0.3"]])
def test_the_gateways_subset_is_kept(subset):
    answers, _ = replay(message("request_headers", subset=subset), END)
    assert answers[0] == ("request_headers", [NAMES[2]])


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
@pytest.mark.parametrize("pods", [NAMES[2:], NAMES[:2], NAMES, ["10.0.0.1", NAMES[2]]])
def test_a_hundred_requests_reach_all_named_pods_and_no_others(mode, pods):
    picker, found = make_picker("round-robin"), set()
    modes = dict.fromkeys(("request_body_mode", "response_body_mode"), mode)
    start = message("request_headers", config=modes, subset=pods)
    served = message("response_headers")
    served.metadata_context.filter_metadata["envoy.lb"][f"{ENDPOINT}-served"] = NAMES[0]
    end = message("response_body", body=b"data: [DONE]\n\n", end_of_stream=True)
    for _ in range(100):
        answers, chosen = replay(start, END, served, end, picker=picker)
        named = next(content for _, content in answers if isinstance(content, list))
        assert named[0] == chosen[0].routed.replica
        assert [kind for kind, _ in answers][-2:] == ["response_headers", "response_body"]
        found |= {named[0], *named}
    assert found == {name for name in NAMES if name in pods or name.split(":")[0] in pods}


def test_refused_requests_get_a_status():
    for subset in ([], ["10.9.9.9:80"], ""):
        refused = replay(message("request_headers", subset=subset), END)
        assert refused == ([("immediate_response", 503)], [])
    picker = make_picker(max_streams=1)
    asyncio.run(picker.pick(b"", 1))
    assert replay(HEADERS, END, picker=picker)[0] == [("immediate_response", 429)]


@pytest.mark.parametrize(("mode", "at"), [("BUFFERED", 1), ("NONE", 0), ("STREAMED", 0)])
def test_in_other_modes_messages_are_answered_and_one_chooses(mode, at):
    answers, _ = replay(message("request_headers", config={"request_body_mode": mode}), END)
    assert [kind for kind, _ in answers] == ["request_headers", "request_body"]
    assert (answers[at][1], answers[1 - at][1]) == (NAMES, None)


def test_a_long_body_is_not_held_but_streamed_through():
    parts = [message("request_body", body=b"x" * 30) for _ in range(3)]
    answers, chosen = replay(HEADERS, *parts, picker=make_picker("round-robin", max_body_bytes=40))
    assert answers == [("request_headers", NAMES), *[("request_body", (b"x" * 30, False))] * 3]
    assert chosen[0].prompt_tokens == 60 / 4
