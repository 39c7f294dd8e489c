-- One job.
select /*job*/ from posthaste.jobs where job = $1
