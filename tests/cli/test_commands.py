"""Every command against a development server, as one types them."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from flowfabric.cli.program import app
from tests.cli.conftest import Shell
from tests.valkey_server import ValkeyServer

Submit = Callable[..., str]
NOWHERE = "{fp:1}:00000000-0000-4000-8000-000000000000"


def test_submit_and_wait_prints_the_result(shell: Shell) -> None:
    assert '"hello, Ada"' in shell.ok("submit", "greet", '{"name": "Ada"}', "--wait")


def test_a_key_submits_once(shell: Shell) -> None:
    key = str(uuid4())
    first = shell.ok("submit", "greet", "--key", key).split()[0]
    again = shell.ok("submit", "greet", "--key", key)
    assert again.split()[0] == first
    assert "nothing new" in again


def test_a_failed_wait_is_exit_code_1(shell: Shell) -> None:
    result = shell.run("submit", "flaky", "--retries", "0", "--wait")
    assert result.exit_code == 1
    assert "failed" in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["submit", "greet", "{"], "payload: not JSON"),
        (["submit", "greet", "--tag", "x"], "expected name=value"),
        (["get", "nonsense"], "execution_id"),
        (["get", NOWHERE], "execution_not_found"),
        (["explain", NOWHERE], "execution_not_found"),
        (["cancel", NOWHERE], "execution_not_found"),
        (["budget", "nothing"], "budget_not_found"),
        (["flow", "00000000-0000-4000-8000-000000000000"], "flow_not_found"),
        (["verify"], "name it"),
        (["backup", "x.db"], "name it"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(shell: Shell, words: list[str], told: str) -> None:
    result = shell.run(*words)
    assert result.exit_code == 1
    (line,) = result.output.strip().splitlines()
    assert line.startswith("error: ")
    assert told in line


def test_no_server_says_what_to_do() -> None:
    result = CliRunner().invoke(app, ["doctor", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "flowfabric dev" in result.output


def test_an_unknown_command_is_exit_code_2(shell: Shell) -> None:
    assert CliRunner().invoke(app, ["dance"]).exit_code == 2


def test_get_shows_attempts_and_result(shell: Shell, submitted: Submit) -> None:
    one = submitted("flaky", "--retries", "3")
    shell.ok("watch", one)
    found = shell.json("get", one)
    assert found["execution"]["public_state"] == "completed"
    assert [attempt["attempt_index"] for attempt in found["attempts"]] == [0, 1, 2]
    told = shell.ok("get", one)
    assert "third time lucky" in told
    assert "service unreachable (try 2)" in told


def test_get_shows_where_a_handler_failed(shell: Shell) -> None:
    run = shell.run("submit", "flaky", "--retries", "0", "--wait")
    own = run.output.split()[0]
    told = shell.ok("get", own)
    assert "failed" in told
    assert "service unreachable (try 1)" in told
    assert "Traceback" in told
    assert "traceback" in shell.json("get", own)


def test_list_filters(shell: Shell, submitted: Submit) -> None:
    one = submitted("greet", "--tag", "app.team=red")
    shell.ok("watch", one)
    found = shell.json("list", "--kind", "greet", "--state", "completed", "--limit", "1000")
    assert one in [item["execution_id"] for item in found["items"]]
    assert one in shell.ok("list", "--kind", "greet", "--limit", "1000")
    assert "no executions" in shell.ok("list", "--kind", "nothing-of-the-kind")


def test_tail_follows_to_the_end(shell: Shell, submitted: Submit) -> None:
    one = submitted("report", '{"chapters": 2}')
    assert shell.ok("tail", one).split("\n")[:2] == ["Chapter 1 is done.", "Chapter 2 is done."]


def test_approve_asks_and_the_work_goes_on(shell: Shell, submitted: Submit) -> None:
    one = submitted("deploy", '{"version": "v9"}')
    _wait_until(shell, one, "suspended")
    assert "suspended" in shell.ok("explain", one)
    assert "approved as ada" in shell.ok("approve", one, "--as", "ada")
    shell.ok("watch", one)
    assert "v9 deployed, said ada" in shell.ok("get", one)


def test_reject_is_heard(shell: Shell, submitted: Submit) -> None:
    one = submitted("deploy", '{"version": "v8"}')
    _wait_until(shell, one, "suspended")
    shell.ok("approve", one, "--reject", "--as", "ben")
    shell.ok("watch", one)
    assert "v8 stopped by ben" in shell.ok("get", one)


def test_resume_ends_a_wait(shell: Shell, submitted: Submit) -> None:
    one = submitted("deploy", '{"version": "v7"}')
    _wait_until(shell, one, "suspended")
    assert "waiting" in shell.ok("resume", one)
    shell.ok("watch", one)


def test_signals_by_name_need_no_token_and_come_before_between_and_during_waits(
    shell: Shell, submitted: Submit
) -> None:
    one = submitted("order", "--lane", "nobody-works-here")
    assert shell.ok("signal", one, "sent", '"by ship"') == "accepted: kept_in_mailbox\n"
    shown = shell.json("get", one)
    assert [kept["signal_name"] for kept in shown["execution"]["mailbox"]] == ["sent"]
    assert "1 unread: sent" in shell.ok("get", one)
    two = submitted("order")
    _wait_until(shell, two, "suspended")
    said = shell.ok("signal", two, "paid", '{"sum": 7}', "--id", "receipt-1")
    assert said == "accepted: resume_condition_satisfied\n"
    assert "a repeat" in shell.ok("signal", two, "paid", '{"sum": 7}', "--id", "receipt-1")
    shell.ok("signal", two, "sent", "3")
    shell.ok("watch", two)
    assert "paid {'sum': 7}, sent 3" in shell.ok("get", two)
    assert "expected JSON" in shell.run("signal", two, "sent", "{").output
    assert "execution_not_active" in shell.run("signal", two, "sent").output
    shell.ok("cancel", one)


def test_cancel_and_replay(shell: Shell, submitted: Submit) -> None:
    one = submitted("greet", "--lane", "nobody-works-here")
    assert "no_worker" in shell.ok("explain", one)
    assert "cancelled" in shell.ok("cancel", one, "--reason", "enough")
    assert "waiting" in shell.ok("replay", one)
    shell.ok("cancel", one)
    assert "waiting" in shell.ok("continue", one)
    shell.ok("cancel", one)
    refused = shell.run("continue", one, "--until", "pay")
    assert refused.exit_code != 0
    assert "no step 'pay' is recorded" in refused.output


def test_a_declared_operation_is_a_command(shell: Shell, submitted: Submit) -> None:
    one = submitted("greet", "--lane", "nobody-works-here")
    assert shell.ok("priority", one, "7") == f"changed {one}\n"
    assert shell.json("priority", one, "8") == {"outcome": "changed", "execution_id": one}
    assert "execution_not_found" in shell.run("priority", NOWHERE, "7").output
    assert shell.run("priority", one, "high").exit_code == 2
    assert shell.ok("hold", one, "--reason", "ask Ada") == f"held {one}\n"
    assert "operator_hold: ask Ada" in shell.ok("explain", one)
    assert shell.ok("release", one) == f"released {one}\n"
    shell.ok("cancel", one)


def test_lanes_are_paused_and_go_on(shell: Shell, submitted: Submit) -> None:
    submitted("greet", "--lane", "side")
    assert "side is paused" in shell.ok("lanes", "side", "--state", "paused")
    assert "paused" in shell.ok("lanes")
    assert "lane side is paused" in shell.ok("doctor")
    shell.ok("lanes", "side", "--state", "active")


def test_workers_and_top(shell: Shell) -> None:
    shell.ok("submit", "greet", "--wait")
    (worker,) = shell.json("workers")["items"]
    assert worker["lanes"] == ["default"]
    instance = worker["worker_instance_id"]
    assert instance in shell.ok("workers")
    assert [one["worker_instance_id"] for one in shell.json("top")["workers"]] == [instance]


def test_tasks_are_listed_with_what_they_take(shell: Shell) -> None:
    shell.ok("submit", "greet", "--wait")
    found = {one["kind"]: one for one in shell.json("tasks")}
    assert set(found) >= {"deploy", "flaky", "greet", "report"}
    assert found["flaky"]["policy"]["retry_policy"]["backoff"]["delay_ms"] == 250
    assert found["deploy"]["workers"] == 1
    assert "chapters?: integer" in shell.ok("tasks")
    told = shell.ok("tasks", "deploy")
    assert "Waits for a person without holding a worker." in told
    assert "version: string" in told
    refused = shell.run("submit", "deploy", '{"versoin": "1"}')
    assert refused.exit_code == 1
    assert "input.version: it is missing" in refused.stderr
    assert "no worker has registered a task dploy" in shell.run("tasks", "dploy").stderr


def metered(shell: Shell, port: str) -> list[str]:
    """The command of a worker that shows its metrics."""
    program = ["worker", "flowfabric.demo.app:fabric", "--lane", "metered", "--metrics-port", port]
    return [sys.executable, "-m", "flowfabric.cli", *program, "--url", shell.url]


def test_a_worker_shows_its_metrics_where_it_is_told_to(shell: Shell) -> None:
    worker = subprocess.Popen(
        metered(shell, "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    try:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        assert line.startswith("metrics on http://127.0.0.1:")
        shell.ok("submit", "greet", "--lane", "metered", "--wait")
        done = 'ff_attempt_outcome_total{lane="metered",outcome="ok"} 1.0'
        while done not in httpx.get(line.split()[-1]).text:
            pass
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    assert worker.returncode == 0


def test_a_metrics_port_that_is_taken_is_one_line(shell: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = metered(shell, port)
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: cannot show metrics: ")
    assert line.endswith("choose another --metrics-port")


def test_rotate_key(shell: Shell) -> None:
    kid = f"k-{uuid4().hex[:8]}"
    told = shell.ok("rotate-key", kid, "--generate")
    assert f"signing with {kid}" in told
    assert "FF_WAITPOINT_HMAC_SECRET=" in told


@pytest.mark.parametrize("shell", ["sqlite"], indirect=True)
def test_backup_and_verify_of_the_file(shell: Shell, directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    source = f"sqlite:////{(directory / 'flowfabric.db').as_posix().lstrip('/')}"
    saved = CliRunner().invoke(app, ["backup", str(copy), "--url", source])
    assert saved.exit_code == 0, saved.output
    again = CliRunner().invoke(app, ["backup", str(copy), "--url", source])
    assert again.exit_code == 1
    assert "exists" in again.output
    url = f"sqlite:////{copy.as_posix().lstrip('/')}"
    verified = CliRunner().invoke(app, ["verify", "--url", url])
    assert verified.exit_code == 0, verified.output
    listed = CliRunner().invoke(app, ["list", "--url", url, "--json"])
    assert listed.exit_code == 0, listed.output


def test_migrate_tells_first_and_then_does(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    url = f"sqlite:////{file.as_posix().lstrip('/')}"
    told = CliRunner().invoke(app, ["migrate", "--dry-run", "--url", url])
    assert told.exit_code == 0, told.output
    assert "would apply 0001_" in told.output
    assert not file.exists()
    done = CliRunner().invoke(app, ["migrate", "--url", url])
    assert "applied 0001_" in done.output
    again = CliRunner().invoke(app, ["migrate", "--url", url, "--json"])
    assert msgspec.json.decode(again.output) == {"steps": [], "applied": True}


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE theirs (a)")
    url = f"sqlite:////{file.as_posix().lstrip('/')}"
    for words in (["migrate", "--dry-run"], ["migrate"], ["verify"]):
        result = CliRunner().invoke(app, [*words, "--url", url])
        assert result.exit_code == 1
        assert "another program" in result.output


def test_verify_repairs_what_is_derived(tmp_path: Path) -> None:
    file = tmp_path / "damaged.db"
    url = f"sqlite:////{file.as_posix().lstrip('/')}"
    for _ in range(3):
        made = CliRunner().invoke(app, ["submit", "greet", "--url", url])
        assert made.exit_code == 0, made.output
    with closing(sqlite3.connect(file)) as damaged, damaged:
        damaged.execute("UPDATE exec SET lane = 'elsewhere', rank = 7, due_at = 9")
    found = CliRunner().invoke(app, ["verify", "--url", url, "--json"])
    assert found.exit_code == 1
    assert {one["kind"] for one in msgspec.json.decode(found.output)} == {"view"}
    mended = CliRunner().invoke(app, ["verify", "--repair", "--url", url])
    assert mended.exit_code == 0, mended.output
    assert "as the records say" in mended.output
    sound = CliRunner().invoke(app, ["verify", "--deep", "--url", url])
    assert sound.exit_code == 0, sound.output


def test_verify_repairs_what_is_derived_on_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ValkeyServer()
    try:
        monkeypatch.setenv("FF_WAITPOINT_HMAC_SECRET", "5e" * 32)
        url = f"valkey://127.0.0.1:{server.port}"
        made = CliRunner().invoke(app, ["submit", "greet", "--url", url])
        assert made.exit_code == 0, made.output
        server.run("DEL", "ff:lq:{fp:0}:default:default")
        found = CliRunner().invoke(app, ["verify", "--url", url, "--json"])
        assert {one["kind"] for one in msgspec.json.decode(found.stdout)} == {"queue"}
        mended = CliRunner().invoke(app, ["verify", "--repair", "--url", url])
        assert mended.exit_code == 0, mended.output
        assert "as the records say" in mended.output
    finally:
        server.end()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command", ["doctor", "list", "verify", "migrate"])
def test_a_store_that_is_not_there_is_one_line_soon(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--url", "valkey://127.0.0.1:1"])
    assert result.exit_code == 1
    told = result.output if command == "doctor" else result.stderr
    (line,) = [one for one in told.splitlines() if "127.0.0.1:1" in one]
    assert line.endswith("127.0.0.1:1: Connection refused")


@pytest.mark.timeout(30)
def test_a_store_that_does_not_answer_is_given_up_soon() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"valkey://127.0.0.1:{silent.getsockname()[1]}"
        result = CliRunner().invoke(app, ["doctor", "--url", url])
    assert result.exit_code == 1
    assert "no answer within 2.0 s" in result.output


def test_a_password_in_an_address_is_not_shown() -> None:
    result = CliRunner().invoke(app, ["doctor", "--url", "valkey://me:pw@127.0.0.1:1"])
    assert result.exit_code == 1
    assert "valkey 127.0.0.1:1" in result.output
    assert "pw" not in result.output


@pytest.mark.parametrize("command", ["doctor", "verify", "list", "migrate"])
def test_a_database_that_does_not_answer_is_one_line(command: str) -> None:
    url = "postgresql://somebody:pw@127.0.0.1:1/db"
    result = CliRunner().invoke(app, [command, "--url", url])
    assert result.exit_code == 1, result.output
    assert "postgres 127.0.0.1:1/db" in result.output
    assert "Traceback" not in result.output
    assert "pw" not in result.output


def _wait_until(shell: Shell, execution_id: str, state: str) -> None:
    """Asks until it is so; the test's own time limit ends what never comes."""
    while shell.json("get", execution_id)["execution"]["public_state"] != state:
        pass


def test_a_doctor_says_whether_signing_keys_are_encrypted(tmp_path: Path) -> None:
    url, key = f"sqlite:///{tmp_path / 'keys.db'}", {"FF_STORE_KEY": "ab" * 32}

    def told(env: dict[str, str]) -> str:
        return CliRunner().invoke(app, ["doctor", "--url", url], env=env).output

    assert "signing keys: in the clear in the store" in told({})
    assert "signing keys: encrypted in the store" in told(key)
    assert "the signing keys of this store are encrypted; set FF_STORE_KEY" in told({})
    wrong = CliRunner().invoke(app, ["list", "--url", url], env={"FF_STORE_KEY": "cd" * 32})
    assert wrong.exit_code == 1
    assert wrong.stderr == (
        "error: invalid_secret: the signing keys of this store are encrypted with another key;"
        " set FF_STORE_KEY to the key of the store\n"
    )
    assert "ab" * 16 not in wrong.output


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path / 'tokens.db'}")
    assert "no token was made" in shell.ok("token", "list")
    words = ("token", "create", "billing workers", "-s", "worker", "-n", "billing")
    told = shell.ok(*words, "--expires", "30d").splitlines()
    assert told[0].startswith("ff_")
    assert len(told[0]) >= 43
    assert "it is not shown again" in told[2]
    assert "ask every caller for a token" in told[3]
    (shown,) = shell.json("token", "list")
    assert (shown["name"], shown["scopes"]) == ("billing workers", ["worker"])
    assert shown["namespaces"] == ["billing"]
    assert shown["expires_at"] == shown["created_at"] + 30 * 86_400_000
    listed = shell.ok("token", "list")
    assert shown["token_id"] in listed
    assert told[0] not in listed
    assert shell.ok("token", "revoke", shown["token_id"]) == f"revoked {shown['token_id']}\n"
    again = shell.run("token", "revoke", shown["token_id"])
    assert (again.exit_code, again.stderr) == (
        1,
        f"error: not_found: there is no token {shown['token_id']}\n",
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--scope", "nope"), "--scope: expected one of read, submit, worker, approve, metrics,"),
        (("--scope", "read", "--expires", "soon"), "--expires: expected a timedelta, seconds or"),
        (("--scope", "read", "-n", "a:b"), "namespaces: contains ':'"),
    ],
)
def test_a_token_that_makes_no_sense_is_one_line(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    result = Shell(f"sqlite:///{tmp_path / 'tokens.db'}").run("token", "create", "x", *words)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert told in line
