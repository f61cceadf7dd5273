"""What becomes of each part of a CronJob."""

from __future__ import annotations

import json

import pytest

from mainspring.cli.kubernetes import read_manifests

MANIFEST = """\
apiVersion: v1
kind: List
items:
- kind: CronJob
  metadata:
    name: hello-world
    labels: {app: shop}
  spec:
    schedule: "*/5 * * * *"
    timeZone: Asia/Tokyo
    suspend: true
    concurrencyPolicy: Forbid
    startingDeadlineSeconds: 100
    failedJobsHistoryLimit: 1
    successfulJobsHistoryLimit: 3
    jobTemplate:
      spec:
        backoffLimit: 2
        activeDeadlineSeconds: 300
        ttlSecondsAfterFinished: 0
        template:
          spec:
            serviceAccountName: x
            containers:
            - name: hello
              image: busybox:1.28
              command: [/bin/sh, -c]
              args: ["echo $WHO"]
              env:
              - {name: WHO, value: world}
              - name: PASSWORD
                valueFrom: {secretKeyRef: {name: s, key: k}}
---
kind: Service
---
kind: CronJob
metadata: {name: bad}
spec: {schedule: bad, timeZone: UTC}
"""


def test_cronjob_becomes_a_job_and_the_rest_is_listed_with_its_line() -> None:
    made = read_manifests(MANIFEST, "cronjobs.yaml")
    assert made.jobs == {
        "hello_world": {
            "schedule": "*/5 * * * *",
            "timezone": "Asia/Tokyo",
            "overlap": "skip",
            "enabled": False,
            "start_deadline": "100s",
            "retries": 2,
            "timeout": "300s",
            "history": 4,
            "retention": "0s",
            "metadata": {"labels": {"app": "shop"}},
            "handler": "imported_handlers:hello_world",
            "isolation": "process",
        }
    }
    assert {one.line: one.what.rpartition(".")[2] for one in made.remarks} == {
        15: "successfulJobsHistoryLimit",
        19: "activeDeadlineSeconds",
        23: "serviceAccountName",
        26: "image",
        31: "1",
        34: "Service",
        38: "schedule",
    }
    assert "'/bin/sh', '-c', 'echo $WHO'" in made.functions[0]
    assert "{'WHO': 'world'}" in made.functions[0]
    compile(made.handlers(), "handlers.py", "exec")


def test_defaults_of_kubernetes_are_written_out() -> None:
    text = "kind: CronJob\nmetadata: {name: x}\nspec: {schedule: '@daily'}\n"
    made = read_manifests(text, "x.yaml")
    assert (made.jobs["x"]["retries"], made.jobs["x"]["overlap"]) == (6, "allow")
    assert any("UTC is assumed" in one.why for one in made.remarks)
    assert "NotImplementedError" in made.functions[0]


def test_references_to_variables_are_replaced_as_kubernetes_does() -> None:
    text = MANIFEST.replace("echo $WHO", "echo $(WHO) $(GREETING) $$(WHO) $(PASSWORD)").replace(
        "- name: PASSWORD",
        "- {name: GREETING, value: hello $(WHO)}\n              - name: PASSWORD",
    )
    made = read_manifests(text, "cronjobs.yaml")
    assert "'echo world hello world $(WHO) $(PASSWORD)'" in made.functions[0]
    assert [r.why for r in made.remarks if "$(" in r.why] == [
        "$(PASSWORD) is not known here: write its value"
    ]


def left_out(text: str) -> tuple[list[str], list[str]]:
    """The jobs that were made, and what is said about those that were left out."""
    made = read_manifests(text, "cronjobs.yaml")
    compile(made.handlers(), "handlers.py", "exec")
    return list(made.jobs), [str(one) for one in made.remarks if "left out" in one.why]


JOB = "spec.jobTemplate.spec"
CONTAINER = f"{JOB}.template.spec.containers"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("backoffLimit: 2", "backoffLimit: -1", f"18: {JOB}.backoffLimit"),
        (
            "ttlSecondsAfterFinished: 0",
            "ttlSecondsAfterFinished: 9999999999999999",
            f"20: {JOB}.ttlSecondsAfterFinished",
        ),
        ("Seconds: 300", "Seconds: x", f"19: {JOB}.activeDeadlineSeconds"),
        ("Policy: Forbid", "Policy: Foo", "12: spec.concurrencyPolicy"),
        ("suspend: true", "suspend: maybe", "11: spec.suspend"),
        ("timeZone: Asia/Tokyo", "timeZone: Mars", "10: spec.timeZone"),
        ("name: hello-world", "name: {a: b}", "6: metadata.name"),
        ("command: [/bin/sh, -c]", "command: echo hi", f"27: {CONTAINER}.0.command"),
        ("[/bin/sh, -c]", "[/bin/sh, {a: b}]", f"27: {CONTAINER}.0.command.1"),
        ("- {name: WHO, value: world}", "- WHO", f"30: {CONTAINER}.0.env.0"),
        ("- {name: WHO, value: world}", "- {value: world}", f"30: {CONTAINER}.0.env.0"),
    ],
)
def test_manifest_with_an_impossible_value_is_left_out_with_its_document_line_and_field(
    old: str, new: str, place: str
) -> None:
    assert old in MANIFEST
    text = MANIFEST.replace(old, new, 1) + "---\nkind: CronJob\nspec: {schedule: '@daily'}\n"
    jobs, [first, bad] = left_out(text)
    assert jobs == ["job"]  # the others are carried over
    assert first.startswith(f"line {place}: the job was left out (")
    assert "document 1): " in first
    assert bad.startswith(
        "line 38: spec.schedule: the job was left out (CronJob 'bad', document 3)"
    )


def test_env_that_is_no_list_and_items_that_are_none_are_told() -> None:
    text = (
        "kind: CronJob\nspec:\n  schedule: '@daily'\n  jobTemplate: {spec: {template: {spec: X}}}\n"
    )
    env = text.replace("X", "{containers: [{command: [a], env: {a: b}}]}")
    assert left_out(env)[1] == [
        f"line 4: {CONTAINER}.0.env: the job was left out (document 1): Expected `array | null`,"
        " got `object`"
    ]
    for shape in ("7", "[7]", "{containers: 7}", "{containers: [7]}"):
        assert len(left_out(text.replace("X", shape))[1]) == 1
    for shape in ("items: 7", "items: [7]", "items: [[7]]"):
        [remark] = read_manifests(f"kind: List\n{shape}\n", "x.yaml").remarks
        assert str(remark).startswith("line 2: document 1: it is no manifest")
    [remark] = read_manifests("---\n- kind: CronJob\n", "x.yaml").remarks
    assert str(remark) == "line 2: document 1: it is no manifest"


def test_folder_of_the_command_is_carried_over() -> None:
    text = MANIFEST.replace("image: busybox:1.28", "workingDir: /srv/shop")
    made = read_manifests(text, "cronjobs.yaml")
    assert "folder='/srv/shop'," in made.functions[0]
    assert not any("workingDir" in one.what for one in made.remarks)


def test_name_of_an_image_cannot_become_code() -> None:
    evil = 'x"""\nimport os\n"""'
    text = MANIFEST.replace("busybox:1.28", json.dumps(evil))
    handlers = read_manifests(text, "cronjobs.yaml").handlers()
    assert '\nimport os\n"' not in handlers
    compile(handlers, "handlers.py", "exec")


def test_aliases_that_repeat_a_part_or_hold_themselves_are_read() -> None:
    nested = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
    text = f"kind: Other\na0: &a0 [1]\n{nested}self: &self [*self]\n"
    assert [one.what for one in read_manifests(text, "x.yaml").remarks] == ["Other"]


@pytest.mark.parametrize("name", ["TZ", "CRON_TZ"])
def test_a_zone_inside_the_schedule_is_carried_over(name: str) -> None:
    spec = f"schedule: '{name}=Asia/Tokyo 0 3 * * *'"
    made = read_manifests(f"kind: CronJob\nmetadata: {{name: a}}\nspec: {{{spec}}}\n", "x.yaml")
    assert (made.jobs["a"]["schedule"], made.jobs["a"]["timezone"]) == ("0 3 * * *", "Asia/Tokyo")
    both = f"kind: CronJob\nmetadata: {{name: a}}\nspec: {{{spec}, timeZone: UTC}}\n"
    refused = read_manifests(both, "x.yaml")  # as Kubernetes does
    assert refused.jobs == {}
    assert "it names a zone, and timeZone 'UTC' too" in str(refused.remarks[0])
