"""What becomes of each part of a CronJob."""

from __future__ import annotations

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
