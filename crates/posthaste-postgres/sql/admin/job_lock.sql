-- The fence of a chunk, and of whatever is ordered: who changes a job has its row. A chunk's transaction begins with it.
select /*job*/ from posthaste.jobs where job = $1 for update
