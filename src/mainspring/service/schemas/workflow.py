"""A workflow as a graph of jobs or runs, and a chain of jobs that a client enqueues."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from mainspring.core.model import State
from mainspring.scheduler.workflow import Workflow as Graph
from mainspring.service.schemas.fields import Body, Document, JobId, JsonValue
from mainspring.service.schemas.run import Run


class LinkBody(Body):
    job_id: Annotated[JobId, Field(description="The job to run.", examples=["extract"])]
    payload: Annotated[JsonValue, Field(description="Instead of the job's own payload.")] = None


class ChainBody(Body):
    """A run of each job, each after the one before it."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"links": [{"jobId": "extract"}, {"jobId": "load"}]}],
        }
    )

    links: Annotated[
        list[LinkBody],
        Field(
            min_length=1, max_length=100, description="The jobs, in the order in which they run."
        ),
    ]
    after_failure: Annotated[
        Literal["skip", "run"] | None,
        Field(
            description="What becomes of a run if the one before it did not succeed. Left out: what"
            " its job says."
        ),
    ] = None


class WorkflowNode(Document):
    id: str
    job_id: str
    run_id: str | None
    state: State | None
    detail: Annotated[
        str | None, Field(description="Why a run did not succeed, or the schedule of a job.")
    ]


class WorkflowEdge(Document):
    from_: Annotated[str, Field(alias="from", description="The node that comes first.")]
    to: Annotated[str, Field(description="The node that comes after it.")]


class Workflow(Document):
    """The jobs, or the runs, of a workflow, and which comes after which."""

    nodes: list[WorkflowNode]
    edges: list[WorkflowEdge]
    complete: Annotated[
        bool, Field(description="False if there may be more runs than are shown here.")
    ]
    text: Annotated[str, Field(description="The graph drawn as a tree.")]


class ChainResult(Document):
    items: list[Run]


def workflow_of(graph: Graph) -> dict[str, Any]:
    """The document of a workflow."""
    found = graph.to_dict()
    return Workflow(
        nodes=[WorkflowNode(**node) for node in found["nodes"]],
        edges=[WorkflowEdge(from_=edge["from"], to=edge["to"]) for edge in found["edges"]],
        complete=graph.complete,
        text=graph.text(),
    ).model_dump(mode="json")
