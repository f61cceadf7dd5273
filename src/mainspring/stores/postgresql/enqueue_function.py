"""`mainspring.enqueue(…)`: an SQL function for triggers, psql and programs in other languages.

It makes the checks of `Client.enqueue` that need no Python, and inserts the run in the caller's
transaction. It runs with the rights of the schema's owner, so a role needs EXECUTE alone. It sends
no hint: NOTIFY would lock the whole database at the caller's commit.
"""

from __future__ import annotations

from mainspring.core.codec import MAX_BYTES
from mainspring.core.policy import MAX_NAME, MAX_PRIORITY

ENQUEUE = f"""
CREATE FUNCTION mainspring.enqueue(
    job_id text, payload jsonb DEFAULT NULL, delay interval DEFAULT NULL,
    at timestamptz DEFAULT NULL, priority integer DEFAULT NULL, queue text DEFAULT NULL,
    dedupe_key text DEFAULT NULL, dedupe_for interval DEFAULT NULL,
    OUT run_id text, OUT duplicate boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $enqueue$
#variable_conflict use_variable
DECLARE
    moment timestamptz := clock_timestamp();
    due timestamptz := coalesce(at, moment + coalesce(delay, interval '0'));
    held_until timestamptz := moment + dedupe_for;
    now_us bigint := extract(epoch FROM moment) * 1000000;
    due_us bigint;
    job record;
    policy jsonb;
    key text := replace(dedupe_key, chr(16), chr(16) || 'e');
    body text := nullif(payload, 'null')::text;
    holder text;
    wrong text;
BEGIN
    SELECT * INTO job FROM mainspring.jobs AS stored WHERE stored.id = job_id;
    IF NOT FOUND THEN
        RAISE 'there is no job %', quote_nullable(job_id) USING ERRCODE = 'no_data_found',
            HINT = 'A program that defines it has to start first.';
    END IF;
    policy := job.policy;
    priority := coalesce(priority, (policy ->> 'priority')::integer, 5);
    queue := coalesce(queue, job.queue);
    wrong := CASE
        WHEN octet_length(body) > {MAX_BYTES}
            THEN format('the payload is %s bytes of JSON; at most {MAX_BYTES} are kept',
                octet_length(body))
        WHEN at IS NOT NULL AND delay IS NOT NULL THEN 'give delay or at, not both'
        WHEN delay < interval '0' OR dedupe_for < interval '0'
            THEN 'delay and dedupe_for cannot be negative'
        WHEN NOT isfinite(due) OR NOT coalesce(isfinite(held_until), true)
            OR greatest(due, held_until) >= '9999-12-31 00:00:00Z' OR due < '0001-01-02 00:00:00Z'
            THEN 'delay, at or dedupe_for ends outside the calendar'
        WHEN priority NOT BETWEEN 0 AND {MAX_PRIORITY}
            THEN format('priority is 0 to {MAX_PRIORITY}, not %s', priority)
        WHEN length(queue) NOT BETWEEN 1 AND {MAX_NAME} OR queue ~ '[[:cntrl:]]'
            THEN 'queue is 1 to {MAX_NAME} printable characters'
        WHEN length(dedupe_key) NOT BETWEEN 1 AND 500
            THEN 'a dedupe_key is text of 1 to 500 characters'
        WHEN dedupe_key IS NULL AND dedupe_for IS NOT NULL THEN 'dedupe_for needs a dedupe_key'
        WHEN dedupe_key IS NOT NULL
            AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
            THEN 'a dedupe_key needs a transaction that is READ COMMITTED: another one does not see'
                ' who has taken the key since it began'
        WHEN policy @> '{{"each_node": true}}'
            THEN format('job %s runs on each node: enqueue it from a program', job_id)
        WHEN EXISTS (
            SELECT 1 FROM mainspring.jobs AS other
            WHERE other.follows AND other.enabled AND other.policy::jsonb -> 'after' ? job_id
        ) THEN format('other jobs come after job %s: enqueue it from a program, or from a job that'
            ' this function enqueues', job_id)
    END;
    IF wrong IS NOT NULL THEN
        RAISE '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    due_us := extract(epoch FROM due) * 1000000;
    run_id := lpad(to_hex(now_us / 1000), 12, '0');
    run_id := run_id || substr(md5(gen_random_uuid()::text || gen_random_uuid()::text), 1, 20);
    LOOP
        SELECT run.id INTO holder FROM mainspring.runs AS run
        WHERE (NOT run.done AND run.dedupe_key = key)
            OR (run.done AND run.dedupe_key = key AND run.dedupe_until > now_us);
        duplicate := FOUND;
        EXIT WHEN duplicate;
        INSERT INTO mainspring.runs (
            done, id, job_id, handler, queue, priority, source, state, attempt, failures, lapses,
            token, cancel_requested, after_any, created_at, scheduled_at, run_at, start_by,
            dedupe_key, dedupe_until, payload
        ) VALUES (
            false, run_id, job_id, job.handler, queue, priority, 'enqueue', 'pending', 0, 0, 0,
            0, false, false, greatest(now_us, job.created_at), due_us, due_us,
            due_us + (1000000 * (policy ->> 'start_deadline')::numeric)::bigint,
            key, extract(epoch FROM held_until) * 1000000, coalesce(body, job.payload)
        ) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
    IF NOT duplicate THEN  -- a run that held the key may have ended meanwhile
        SELECT run.id INTO holder FROM mainspring.runs AS run
        WHERE run.done AND run.dedupe_key = key AND run.dedupe_until > now_us;
        duplicate := FOUND;
        IF duplicate THEN
            DELETE FROM mainspring.runs AS run WHERE NOT run.done AND run.id = run_id;
        END IF;
    END IF;
    IF duplicate THEN
        run_id := holder;
    END IF;
END
$enqueue$;
REVOKE ALL ON FUNCTION mainspring.enqueue FROM PUBLIC;
"""
