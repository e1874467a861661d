import base64, json
from uuid import uuid4
from tests.server.driving import Served, fence

async def test_tour(served: Served) -> None:
    own = await served.submit(tags={"app.team": "a"}, policy={"retry_policy": {"max_retries": 2}})
    for path in ("", "/state", "/input", "/attempts", "/history", "/upstreams", "/journal", "/resume-signals?attempt_index=0", "/explain", "/pending-waitpoints"):
        answer = await served.call(f"GET /v1/executions/{own}{path}")
        print(path, answer.status_code, answer.text[:300])
        assert answer.status_code == 200
    assert (await served.call(f"GET /v1/executions/{own}/result")).status_code == 404
    for path in ("/v1/executions", "/v1/executions/search?tag=app.team=a", "/v1/executions/count", "/v1/executions?lane=default&state=eligible", f"/v1/executions?partition=86", "/v1/events?cursor=oldest", "/v1/workers", "/v1/capabilities", "/v1/partitions", "/healthz", "/readyz", "/openapi.json", "/docs"):
        answer = await served.call(f"GET {path}")
        print(path, answer.status_code, answer.text[:300])
        assert answer.status_code == 200, answer.text
    await served.done("POST /v1/worker/register", {"worker_id":"pool","worker_instance_id":"pool-1","lanes":["default"],"ttl_ms":5000})
    claimed = await served.claim(wait_ms=100)
    held = fence(claimed)
    print(await served.done("POST /v1/worker/renew", {"worker_instance_id":"pool-1","lease_ms":5000,"items":[{**held,"progress_pct":5}]}))
    print(await served.done("POST /v1/worker/frames", {"items":[{**held,"attempt_index":0,"frames":[{"frame_type":"log","payload":"aGk="},{"frame_type":"s","payload":base64.b64encode(b'{"a":1}').decode(),"mode":"summary"}]}]}))
    print(await served.done(f"GET /v1/executions/{own}/attempts/0/stream"))
    print(await served.done(f"GET /v1/executions/{own}/attempts/0/stream/tail?block_ms=10&after=0-0"))
    print(await served.done(f"GET /v1/executions/{own}/attempts/0/summary"))
    print(await served.done("POST /v1/worker/journal", {**held,"entries":[{"name":"s","seq":0,"digest":"ab","outcome":"aGk="}]}))
    print(await served.done("POST /v1/worker/waitpoints", {**held,"expires_in_ms":10000}))
    done = await served.done("POST /v1/worker/suspend", {**held,"op":"o1","waitpoints":[{"fresh":{}}],"resume_condition":{"condition_type":"signal_set","required_signal_names":["approved"]},"reason_code":"waiting_for_approval"})
    print(done)
    wp = done["Suspended"]["waitpoints"][0]
    print(await served.done(f"GET /v1/executions/{own}/pending-waitpoints"))
    print(await served.done(f"POST /v1/executions/{own}/waitpoints/{wp['waitpoint_id']}/approve", {"signal_name":"approved","source_identity":"ann"}))
    claimed = await served.claim()
    print(claimed)
    print(await served.finish(fence(claimed), complete={}))
    print(await served.done(f"POST /v1/executions/{own}/replay"))
    print(await served.done(f"POST /v1/executions/{own}/cancel", {"reason":"x"}))
    async with served.client.stream("GET", f"/v1/executions/{own}/attempts/latest/stream/sse?summary=1") as s:
        print((await s.aread()).decode())
    print(await served.done(f"GET /v1/events?cursor=oldest"))
    for line in ("PATCH /v1/executions", "GET /nope", "POST /v1/executions"):
        print(await served.refused(line))
    for body in ({"lane_id":1}, {}, {"lane_id":"a","execution_kind":"k","x":1}, {"lane_id":"a","execution_kind":"k","execution_id":"zz"}, {"lane_id":"a","execution_kind":"k","namespace":None,"priority":None, "execution_id": "{fp:1}:nope"},{"lane_id":"a","execution_kind":"k","namespace":None,"priority":None}):
        print((await served.call("POST /v1/executions", body)).text)
