#!/bin/sh
# A client and a worker made of nothing but curl: submit, work, suspend, approve, stream, cancel.
# Usage: tour.sh http://127.0.0.1:9090 [token]
set -eu

base=$1
token=${2:-}
worker='"worker_id":"curl","worker_instance_id":"curl-1"'

call() { # METHOD PATH [BODY]: the answer, or the error on stderr and the end
    method=$1 path=$2
    set -- --silent --show-error --globoff --fail-with-body --max-time 40 --request "$method" \
        ${token:+--header "Authorization: Bearer $token"} \
        ${3:+--header "Content-Type: application/json" --data "$3"} "$base$path"
    curl "$@" || { echo "$method $path failed" >&2; exit 1; }
}

field() { # NAME: the first member of this name in the JSON on stdin, a text or a number
    tr ',' '\n' | sed -n 's/.*"'"$1"'":"\{0,1\}\([^"]*\)"\{0,1\}.*/\1/p' | sed 's/[]}]*$//' | head -n 1
}

expect() { # TEXT WHAT: the text on stdin must contain it
    found=$(cat)
    case $found in *"$1"*) echo "ok: $2" ;; *) echo "unexpected: $found" >&2; exit 1 ;; esac
}

echo "# submit"
own=$(call POST /v1/executions \
    '{"lane_id":"curl","execution_kind":"report","input_payload":"aGVsbG8="}' \
    | sed 's/.*"execution_id":"\([^"]*\)".*/\1/')
echo "ok: $own"

echo "# work"
call POST /v1/worker/register "{$worker,\"lanes\":[\"curl\"],\"ttl_ms\":60000}" \
    | expect '"next_expiry_ms"' 'the worker is known'
claimed=$(call POST /v1/worker/claim "{$worker,\"lanes\":[\"curl\"],\"wait_ms\":5000}")
fence() { # CLAIMED: the proof of the lease
    printf '"execution_id":"%s","lease_id":"%s","lease_epoch":%s,"attempt_id":"%s"' "$own" \
        "$(echo "$1" | field lease_id)" "$(echo "$1" | field lease_epoch)" \
        "$(echo "$1" | field attempt_id)"
}
held=$(fence "$claimed")
call POST /v1/worker/frames \
    "{\"items\":[{$held,\"attempt_index\":0,\"frames\":[{\"frame_type\":\"log\",\"payload\":\"c3RlcCAx\"}]}]}" \
    | expect '"frame_count":1' 'a frame is written'
call GET "/v1/executions/$own/attempts/0/stream/tail?block_ms=1000" \
    | expect 'c3RlcCAx' 'and read'

echo "# suspend until somebody approves"
waitpoint=$(call POST /v1/worker/suspend "{$held,\"op\":\"wait\",\"waitpoints\":[{\"type\":\"fresh\"}],
    \"resume_condition\":{\"condition_type\":\"signal_set\",\"required_signal_names\":[\"approved\"]},
    \"reason_code\":\"waiting_for_approval\"}" | field waitpoint_id)
call GET "/v1/executions/$own/state" | expect '"suspended"' 'it waits without a worker'
call POST "/v1/executions/$own/waitpoints/$waitpoint/approve" \
    '{"signal_name":"approved","source_identity":"curl"}' \
    | expect 'resume_condition_satisfied' 'approved'

echo "# go on and finish"
claimed=$(call POST /v1/worker/claim "{$worker,\"lanes\":[\"curl\"],\"wait_ms\":5000}")
echo "$claimed" | expect '"attempt_type":"resumed"' 'the same attempt goes on'
call POST /v1/worker/finish \
    "{\"items\":[{$(fence "$claimed"),\"op\":\"done\",\"outcome\":{\"type\":\"complete\",\"result\":\"ZG9uZQ==\"}}]}" \
    | expect '"state":"completed"' 'completed'
call GET "/v1/executions/$own/result?wait_ms=5000" | expect 'done' 'the result'

echo "# the whole stream, as events"
call GET "/v1/executions/$own/attempts/0/stream/sse" | expect 'event: closed' 'the stream ended'

echo "# cancel another one"
other=$(call POST /v1/executions '{"lane_id":"curl","execution_kind":"report"}' \
    | sed 's/.*"execution_id":"\([^"]*\)".*/\1/')
call POST "/v1/executions/$other/cancel" '{"reason":"no longer needed"}' \
    | expect '"public_state":"cancelled"' 'cancelled'
call POST /v1/worker/leave '{"worker_instance_id":"curl-1"}' | expect '"left"' 'the worker left'
echo "done"
