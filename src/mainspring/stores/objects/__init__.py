"""`s3://`, `gs://`, `az://`, `file://`: keeps everything in a bucket with conditional writes.

A round is one read, evaluation and conditional write of the head, for all operations that wait.

    store.py             the methods of the seam: each is an operation of a round
    group_commit.py      rounds: all operations that wait go into one write of the head
    workspace.py         what an operation reads and changes
    claim.py             claim and renew
    commit.py            add and commit
    jobs.py              jobs, and the firing of their slots
    notes.py             notes
    queries.py           find
    counters.py          counters of ended runs
    history.py           finished runs in segments, and the catalogue of the segments
    compaction.py        moves finished runs to segments, prunes, collects garbage
    state.py             the live state: runs, jobs, notes and counters
    schema.py            the objects: their names and encoding, and the head, which every write
                         compares and swaps
    part_cache.py        reads and writes parts: objects that are written once and never changed
    storage_clock.py     the storage's time, as an earliest and a latest bound
    bucket.py            all that the store needs of object storage
    url.py               the URL of a store
    obstore_bucket.py    S3, Google Cloud Storage and Azure; profiles of AWS
    obstore_errors.py    their errors as errors of Mainspring
    directory_bucket.py  a directory as a bucket
    self_test.py         proves that a bucket obeys conditions

docs/decisions/0020-object-storage.md says why it is built so.
"""

from __future__ import annotations

from mainspring.stores.objects.store import ObjectStore

__all__ = ["ObjectStore"]
