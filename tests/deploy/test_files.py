"""What deploy/ says, held against the service: settings, flags, paths, ports, times."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import promql_parser
import pytest
import yaml
from typer.testing import CliRunner

from mainspring import Scheduler
from mainspring.cli.program import app as program
from mainspring.core.durations import duration
from mainspring.core.policy import memory_size
from mainspring.dashboard.app import create_app
from mainspring.engine.worker import DRAIN_GRACE
from mainspring.service.server import FINISH_SECONDS
from mainspring.service.settings import ServiceSettings
from mainspring.stores.mongodb.url import MongoUrl
from tests.support.deploy_files import DEPLOY, DOCKERFILE, KNOWN, ROOT, docker_steps

UNITS = {path.name: path.read_text() for path in sorted(DEPLOY.glob("*.service"))}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = {
    path.name: yaml.safe_load(path.read_text())
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
}
DEPLOYMENT = KUBERNETES["deployment.yaml"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
WORKER = KUBERNETES["worker.yaml"]
WORKER_POD = WORKER["spec"]["template"]["spec"]
FIRST_KEY_POD = KUBERNETES["first-key.yaml"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
SERVICES = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("mainspring:")}


SETTLED = {"PATH", "PYTHONDONTWRITEBYTECODE"}
"""Those of the container that are Python's and the shell's."""

CLOSING = timedelta(seconds=FINISH_SECONDS + 2 * DRAIN_GRACE)


def settings_of(text: str) -> dict[str, str]:
    """NAME=value, one in a line; those that are commented out too."""
    return dict(re.findall(r"^#?([A-Z][A-Z_]+)=(.*)$", text, re.MULTILINE))


def container_settings() -> dict[str, str]:
    [env] = docker_steps("ENV")
    return dict(one.split("=", 1) for one in env.split())


def everywhere() -> list[tuple[str, dict[str, str]]]:
    secret = KUBERNETES["secret.example.yaml"]["stringData"]
    return [
        ("Dockerfile", container_settings()),
        ("deployment.yaml", {one["name"]: one["value"] for one in CONTAINER["env"]}),
        ("worker.yaml", {e["name"]: e["value"] for e in WORKER_POD["containers"][0]["env"]}),
        ("secret.example.yaml", secret),
        ("mainspring.env.example", settings_of((DEPLOY / "mainspring.env.example").read_text())),
        *((f"compose.yaml {name}", one["environment"]) for name, one in OURS.items()),
    ]


@pytest.mark.parametrize(("where", "given"), everywhere(), ids=lambda one: str(one)[:30])
def test_every_setting_is_one_that_the_service_reads(where: str, given: dict[str, str]) -> None:
    assert given
    assert set(given) - SETTLED <= KNOWN
    numbers = {name.lower(): text for name, text in given.items() if text.isdigit()}
    assert ServiceSettings(_env_file=None, **numbers)  # type: ignore[call-arg,arg-type]


@pytest.mark.parametrize(
    "words",
    [
        CONTAINER["args"],
        FIRST_KEY_POD["containers"][0]["args"],
        WORKER_POD["containers"][0]["args"],
        json.loads(docker_steps("CMD")[-1]),
        *(
            re.findall(r"^ExecStart=/opt/mainspring/bin/mainspring (.*)$", unit, re.MULTILINE)[
                0
            ].split()
            for unit in UNITS.values()
        ),
    ],
    ids=" ".join,
)
def test_every_command_and_flag_is_one_of_the_command_line(words: list[str]) -> None:
    command = [word for word in words if not word.startswith("-")][:2]
    command = command[:1] if command[0] in ("serve", "worker") else command
    shown = CliRunner().invoke(program, [*command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for flag in (word for word in words if word.startswith("--")):
        assert flag in shown.output
    assert json.loads(docker_steps("ENTRYPOINT")[0]) == ["mainspring"]


def test_ports_agree() -> None:
    port = int(container_settings()["PORT"])
    assert ServiceSettings.model_fields["port"].default == port
    assert docker_steps("EXPOSE") == [str(port)]
    assert CONTAINER["ports"] == [{"name": "http", "containerPort": port}]
    assert KUBERNETES["service.yaml"]["spec"]["ports"][0]["targetPort"] == "http"
    published = [text for one in OURS.values() for text in one["ports"]]
    assert len(set(published)) == len(published) == 2
    for text in published:
        assert text.startswith("127.0.0.1:")
        assert text.endswith(f":{port}")


async def test_the_probes_paths_answer_without_a_key() -> None:
    probes = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    [health] = [line for line in docker_steps("HEALTHCHECK") if "CMD" in line]
    assert "/readyz'" in health
    async with Scheduler("memory://", workers=0) as scheduler:
        app = create_app(scheduler, ServiceSettings.read(), loopback=False)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://10.1.2.3:3000"
        ) as client:
            for path in set(paths.values()):
                assert (await client.get(path)).status_code == 200
            assert (await client.get("/api/v1/jobs")).status_code == 401


def test_running_work_has_time_to_end() -> None:
    longest = timedelta(milliseconds=ServiceSettings.model_fields["drain_timeout"].default)
    told = {one["name"]: one["value"] for one in CONTAINER["env"]}
    before = timedelta(seconds=CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"])
    drain = timedelta(milliseconds=int(told["DRAIN_TIMEOUT"]))
    grace = timedelta(seconds=POD["terminationGracePeriodSeconds"])
    assert grace == timedelta(seconds=60)
    assert grace > before + drain + CLOSING
    for unit in UNITS.values():
        assert re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE) == ["60"]
    assert timedelta(seconds=60) > longest + CLOSING
    for one in OURS.values():
        assert one["stop_grace_period"] == "60s"


def test_nothing_runs_as_root_or_writes_outside_its_data() -> None:
    [user] = docker_steps("USER")
    [folder] = docker_steps("VOLUME")
    assert (user, folder) == ("10001:10001", "/data")
    assert docker_steps("WORKDIR")[-1] == folder  # the embedded store and its key lie there
    for pod in (POD, WORKER_POD, FIRST_KEY_POD):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == int(user.split(":")[0])
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounted["data"] == folder
        assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    for one in OURS.values():
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
    for unit in UNITS.values():
        for line in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes"):
            assert line in unit.splitlines()
        assert "StateDirectory=mainspring" in unit
        assert "WorkingDirectory=/var/lib/mainspring" in unit


def test_workers_and_service_share_a_user_and_settings() -> None:
    """systemd names the dynamic user after the unit, unless the unit names one."""
    assert set(UNITS) == {"mainspring.service", "mainspring-worker.service"}
    lines = {name: set(unit.splitlines()) for name, unit in UNITS.items()}
    assert "User=mainspring" in lines["mainspring-worker.service"]
    differing = {
        line.partition("=")[0]
        for line in lines["mainspring.service"] ^ lines["mainspring-worker.service"]
        if not line.startswith("#")
    }
    assert differing == {"Description", "ExecStart", "User"}


def test_manifests_belong_together() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert KUBERNETES["service.yaml"]["spec"]["selector"] == labels
    budget = KUBERNETES["disruption.yaml"]
    assert budget["kind"] == "PodDisruptionBudget"
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["maxUnavailable"] < DEPLOYMENT["spec"]["replicas"]
    secret = KUBERNETES["secret.example.yaml"]["metadata"]["name"]
    for pod in (POD, WORKER_POD, FIRST_KEY_POD):
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": secret}}]
        assert pod["enableServiceLinks"] is False  # they would set variables of their own


def test_the_worker_has_time_to_drain_and_stops_growing_runs_before_the_container_is_killed() -> (
    None
):
    [worker] = WORKER_POD["containers"]
    words = worker["args"]
    drain = duration(words[words.index("--drain-timeout") + 1], what="drain")
    grace = timedelta(seconds=WORKER_POD["terminationGracePeriodSeconds"])
    assert grace > drain + CLOSING
    limit = memory_size(words[words.index("--memory-limit") + 1])
    assert limit is not None
    assert 1.25 * limit <= (memory_size(worker["resources"]["limits"]["memory"] + "B") or 0)
    labels = WORKER["spec"]["template"]["metadata"]["labels"]
    assert WORKER["spec"]["selector"]["matchLabels"] == labels
    assert labels != DEPLOYMENT["spec"]["template"]["metadata"]["labels"]  # the service is not its


def test_images_are_one_version_and_come_from_no_named_registry() -> None:
    version = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    images = {one["image"] for one in SERVICES.values()}
    images |= {pod["containers"][0]["image"] for pod in (POD, FIRST_KEY_POD)}
    images |= {line.split()[0] for line in docker_steps("FROM")}
    assert images == {f"mainspring:{version[0]}", "mongo:8", "python:3.13-slim"}
    assert f"--tag mainspring:{version[0]} ." in DOCKERFILE


def test_the_replica_set_is_made_of_the_compose_files_nodes() -> None:
    script = (DEPLOY / "replica-set.js").read_text()
    [config] = re.findall(r"const config = (\{.*?\n\});", script, re.DOTALL)
    made = json.loads(config)
    assert "rs.initiate(config)" in script
    nodes = {name: one for name, one in SERVICES.items() if one.get("command", [""])[0] == "mongod"}
    assert len(nodes) == 3
    for one in nodes.values():
        assert one["command"][1:3] == ["--replSet", made["_id"]]
    hosts = [member["host"] for member in made["members"]]
    assert hosts == [f"{name}:27017" for name in nodes]
    assert len({one["volumes"][0] for one in nodes.values()}) == 3
    maker = SERVICES["replica-set"]
    assert maker["command"][-1] == maker["volumes"][0].split(":")[1] == "/replica-set.js"
    assert set(maker["depends_on"]) == set(nodes)
    for one in OURS.values():
        assert one["depends_on"]["replica-set"]["condition"] == "service_completed_successfully"
        url = urlsplit(one["environment"]["MAINSPRING_STORE"])
        assert url.netloc.split(",") == hosts
        assert url.query == f"replicaSet={made['_id']}"
        assert MongoUrl.of(one["environment"]["MAINSPRING_STORE"]).database == "mainspring"
        assert set(one["networks"]) & set(maker["networks"])


ALERTS = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SCALING = KUBERNETES["autoscaling.yaml"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_prometheus_takes_each_rule(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert promql_parser.parse(rule["expr"])
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s"))
    texts = {**rule["labels"], **rule["annotations"]}
    assert {"severity", "summary"} <= set(texts)
    assert all(isinstance(text, str) and text for text in texts.values())
    kept = set(re.findall(r"\$labels\.(\w+)", str(texts)))
    by = re.findall(r"by \(([^)]*)\)", rule["expr"])
    assert all(kept <= set(re.split(r",\s*", labels)) for labels in by)


def test_the_autoscaler_scales_the_workers_by_metrics_of_their_queue() -> None:
    assert (SCALING["apiVersion"], SCALING["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = SCALING["spec"]
    assert set(spec) == {
        *("scaleTargetRef", "pollingInterval", "minReplicaCount", "maxReplicaCount"),
        *("advanced", "triggers"),
    }
    assert spec["scaleTargetRef"]["name"] == WORKER["metadata"]["name"]
    assert 1 <= spec["minReplicaCount"] <= WORKER["spec"]["replicas"] <= spec["maxReplicaCount"]
    [down] = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"]
    assert down["periodSeconds"] >= WORKER_POD["terminationGracePeriodSeconds"]
    for trigger in spec["triggers"]:
        assert set(trigger) == {"type", "metricType", "metadata"}
        assert trigger["type"] == "prometheus"
        assert trigger["metricType"] in ("AverageValue", "Value")
        metadata = trigger["metadata"]
        assert all(isinstance(text, str) for text in metadata.values())  # KEDA refuses numbers
        assert float(metadata["threshold"]) > 0
        assert urlsplit(metadata["serverAddress"]).scheme == "http"
        assert promql_parser.parse(metadata["query"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_promtool_takes_the_rules() -> None:
    file = str(DEPLOY / "prometheus-alerts.yml")
    subprocess.run(["promtool", "check", "rules", file], check=True, timeout=100)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name
    text = UNITS[name].replace("/opt/mainspring/bin/mainspring", shutil.which("true") or "")
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    ours = [line for line in done.stderr.splitlines() if name in line]
    assert (done.returncode, ours) == (0, [])
